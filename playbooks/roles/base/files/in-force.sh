#!/bin/sh
# What was written takes effect now, however an earlier play ended, and the clock is kept by Amazon's time. Says
# `changed` where it had not been so.
#   in-force.sh container|machine SHM_PERCENT TIME_SERVER
set -eu
settings=/etc/sysctl.d/60-trainyard.conf
names=$(sed -n 's/ *=.*//p' "$settings")

seen() {
  sysctl -e -n $names 2>/dev/null || true
  cat /sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages \
    2>/dev/null || true
}

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

# What systemd gives from now on; what runs keeps its limits until it is started again.
asked=$(sed -n 's/^Default/Default/p' /etc/systemd/system.conf.d/60-trainyard.conf | sort)
given=$(systemctl show --property=DefaultLimitNOFILE,DefaultLimitMEMLOCK,DefaultTasksMax | sort)
if [ "$given" != "$asked" ]; then
  systemctl daemon-reexec
  echo changed
fi

sources() { chronyc -c -n sources | cut -d , -f 3; }

if ! systemctl is-active --quiet chrony.service; then
  systemctl is-enabled --quiet chrony.service || systemctl enable --quiet chrony.service
  systemctl start chrony.service
  # Where the clock is another's to set, a container's, its unit's condition lets it rest.
  [ "$(systemctl show --property=ConditionResult --value chrony.service)" = yes ] || exit 0
  echo changed
fi
# An image of AWS names it by itself. Without a way to the internet it is the only time that a node reaches.
if ! sources | grep -qxF "$3"; then
  mkdir -p /etc/chrony/sources.d
  echo "server $3 prefer iburst minpoll 4 maxpoll 4" > /etc/chrony/sources.d/trainyard.sources
  chronyc reload sources > /dev/null
  echo changed
fi
