#!/bin/sh
# Verify that a systemd unit is active: verify-unit.sh UNIT
# A script, because `ansible.builtin.command` starts a Python module, which takes five times as long.
state=$(systemctl is-active "$1") && exit 0
echo "$1 is $state: check 'journalctl -u $1'" >&2
exit 1
