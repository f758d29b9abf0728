#!/bin/sh
# Apply the settings files of the role to the running system, and make chrony use Amazon's time server.
#   apply-settings.sh container|machine SHM_PERCENT TIME_SERVER
# Prints `changed` if the running system differed.
set -eu
kind=$1 shm_percent=$2 time_server=$3
settings=/etc/sysctl.d/60-trainyard.conf
names=$(sed -n 's/ *=.*//p' "$settings")

current_settings() {
  # shellcheck disable=SC2086 # one argument per name
  sysctl -e -n $names 2>/dev/null || true
  cat /sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages \
    2>/dev/null || true
}

before=$(current_settings)
if [ "$kind" = container ]; then
  sysctl -e -q -p "$settings" 2>/dev/null || true  # the kernel refuses the host's settings
else
  sysctl -q -p "$settings"
  systemd-tmpfiles --create /etc/tmpfiles.d/60-trainyard.conf
fi
[ "$before" = "$(current_settings)" ] || echo changed

expected_kib=$(awk -v percent="$shm_percent" '/^MemTotal/ {printf "%d", $2 * percent / 100}' /proc/meminfo)
size_kib=$(df --output=size /dev/shm | tail -1)
# The kernel rounds the size to pages.
if [ "$size_kib" -lt $((expected_kib - 8)) ] || [ "$size_kib" -gt $((expected_kib + 8)) ]; then
  mount -o "remount,size=${expected_kib}k" /dev/shm
  echo changed
fi

# systemd's default limits apply to services that start later; running services keep theirs until a restart.
expected_limits=$(sed -n 's/^Default/Default/p' /etc/systemd/system.conf.d/60-trainyard.conf | sort)
limits=$(systemctl show --property=DefaultLimitNOFILE,DefaultLimitMEMLOCK,DefaultTasksMax | sort)
if [ "$limits" != "$expected_limits" ]; then
  systemctl daemon-reexec
  echo changed
fi

time_sources() { chronyc -c -n sources | cut -d , -f 3; }

if ! systemctl is-active --quiet chrony.service; then
  systemctl is-enabled --quiet chrony.service || systemctl enable --quiet chrony.service
  systemctl start chrony.service
  # Without the right to set the clock, as in a container, the unit's condition skips the start.
  [ "$(systemctl show --property=ConditionResult --value chrony.service)" = yes ] || exit 0
  echo changed
fi
# AWS's own images configure this server. Without internet access it is the only time server that a node reaches.
if ! time_sources | grep -qxF "$time_server"; then
  mkdir -p /etc/chrony/sources.d
  echo "server $time_server prefer iburst minpoll 4 maxpoll 4" > /etc/chrony/sources.d/trainyard.sources
  chronyc reload sources > /dev/null
  echo changed
fi
