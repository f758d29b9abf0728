#!/bin/sh
# Write the parameters of the client's kernel modules for more than 64 vCPUs, by FSx's performance guide. The modules
# read them when they are loaded. Prints `changed` if anything was changed.
#   configure-modules.sh REBOOT_FILE [SETTINGS_FILE LOADED_PARAMETER MOUNTS]
set -eu
reboot_file=$1
settings=${2:-/etc/modprobe.d/60-trainyard-lustre.conf}
loaded=${3:-/sys/module/ptlrpc/parameters/ptlrpcd_per_cpt_max}
mounts=${4:-/proc/mounts}
[ "$(nproc --all)" -gt 64 ] || exit 0
expected='options ptlrpc ptlrpcd_per_cpt_max=32
options ksocklnd credits=2560'
if [ "$(cat "$settings" 2>/dev/null || true)" != "$expected" ]; then
  echo "$expected" > "$settings"
  echo changed
fi
# An image may have loaded the modules before.
if [ -e "$loaded" ] && [ "$(cat "$loaded")" != 32 ]; then
  if grep -q ' lustre ' "$mounts" || ! lustre_rmmod; then
    mkdir -p "$(dirname "$reboot_file")"
    echo "lustre: the modules were loaded before their parameters were set, and are in use" > "$reboot_file"
  fi
  echo changed
fi
