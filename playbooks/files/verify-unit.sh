#!/bin/sh
# Verify that a systemd unit is active, within 15 s if it is starting: verify-unit.sh UNIT
# A script, because `ansible.builtin.command` starts a Python module, which takes five times as long.
for _ in $(seq 30); do
  state=$(systemctl is-active "$1") && exit 0
  [ "$state" = activating ] || break
  sleep 0.5
done
echo "$1 is $state: check 'journalctl -u $1'" >&2
exit 1
