#!/bin/sh
# Settings of the client's modules on more than 64 vCPUs, by FSx's performance guide: read when they are loaded, and so
# written before. Says `changed` where they were not.
#   tune-modules.sh REBOOT_FILE [SETTINGS LOADED MOUNTS]
set -eu
reboot=$1
settings=${2:-/etc/modprobe.d/60-trainyard-lustre.conf}
loaded=${3:-/sys/module/ptlrpc/parameters/ptlrpcd_per_cpt_max}
mounts=${4:-/proc/mounts}
[ "$(nproc --all)" -gt 64 ] || exit 0
wanted='options ptlrpc ptlrpcd_per_cpt_max=32
options ksocklnd credits=2560'
if [ "$(cat "$settings" 2>/dev/null || true)" != "$wanted" ]; then
  echo "$wanted" > "$settings"
  echo changed
fi
# An image may have loaded them before.
if [ -e "$loaded" ] && [ "$(cat "$loaded")" != 32 ]; then
  if grep -q ' lustre ' "$mounts" || ! lustre_rmmod; then
    mkdir -p "$(dirname "$reboot")"
    echo "lustre: its modules were loaded before their settings, and are in use" > "$reboot"
  fi
  echo changed
fi
