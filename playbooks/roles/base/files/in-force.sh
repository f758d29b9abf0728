#!/bin/sh
# What was written takes effect now, however an earlier play ended. Says `changed` where it had not.
#   in-force.sh container|machine PERCENT
set -eu
settings=/etc/sysctl.d/60-trainyard.conf
names=$(sed -n 's/ *=.*//p' "$settings")

seen() { sysctl -e -n $names 2>/dev/null || true; }

before=$(seen)
if [ "$1" = container ]; then
  sysctl -e -q -p "$settings" 2>/dev/null || true  # most are the host's, and refused
else
  sysctl -q -p "$settings"
  systemd-tmpfiles --create /etc/tmpfiles.d/60-trainyard.conf
fi
[ "$before" = "$(seen)" ] || echo changed

wanted=$(awk -v percent="$2" '/^MemTotal/ {printf "%d", $2 * percent / 100}' /proc/meminfo)
have=$(df --output=size /dev/shm | tail -1)
# The kernel rounds to pages.
if [ "$have" -lt $((wanted - 8)) ] || [ "$have" -gt $((wanted + 8)) ]; then
  mount -o "remount,size=${wanted}k" /dev/shm
  echo changed
fi

limit=$(systemctl show --property=DefaultLimitNOFILE --value)
asked=$(sed -n 's/^DefaultLimitNOFILE=//p' /etc/systemd/system.conf.d/60-trainyard.conf)
if [ "$limit" != "$asked" ] && [ "$1" = machine ]; then
  systemctl daemon-reexec
  echo changed
fi
