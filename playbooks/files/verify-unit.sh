#!/bin/sh
# Verify that a systemd unit is active, within 15 s if it is starting: verify-unit.sh UNIT [READY_FILE]
# With READY_FILE: until its main process has written its process id there, within 60 s. A unit that fails again and
# again is active most of the time.
# A script, because `ansible.builtin.command` starts a Python module, which takes five times as long.
unit=$1 ready=${2:-}
if [ -z "$ready" ]; then
  for _ in $(seq 30); do
    state=$(systemctl is-active "$unit") && exit 0
    [ "$state" = activating ] || break
    sleep 0.5
  done
else
  for _ in $(seq 120); do
    main=$(systemctl show --property=MainPID "$unit" | sed -n 's/^MainPID=//p')
    [ "$main" != 0 ] && [ "$(cat "$ready" 2>/dev/null)" = "$main" ] && exit 0
    sleep 0.5
  done
  state="not ready after 60 s"
fi
last=$(journalctl --unit "$unit" --lines 3 --output cat 2>/dev/null | tr '\n' ' ')
echo "$unit is $state: check 'journalctl -u $unit' ($last)" >&2
exit 1
