#!/bin/sh
# Whether a unit runs: unit-runs.sh UNIT
state=$(systemctl is-active "$1") && exit 0
echo "$1 is $state: journalctl -u $1 says why" >&2
exit 1
