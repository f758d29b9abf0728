#!/bin/sh
# Settings of the client's modules on more than 64 vCPUs, by FSx's performance guide: read when they are loaded, and so
# written before. Says `changed` where they were not.
set -eu
file=/etc/modprobe.d/60-trainyard-lustre.conf
[ "$(nproc --all)" -gt 64 ] || exit 0
wanted='options ptlrpc ptlrpcd_per_cpt_max=32
options ksocklnd credits=2560'
if [ "$(cat "$file" 2>/dev/null || true)" != "$wanted" ]; then
  echo "$wanted" > "$file"
  echo changed
fi
# An image may have loaded them with others. What is mounted keeps them: the check afterwards says so.
seen=/sys/module/ptlrpc/parameters/ptlrpcd_per_cpt_max
if [ -e "$seen" ] && [ "$(cat "$seen")" != 32 ] && ! grep -q ' lustre ' /proc/mounts && lustre_rmmod; then
  echo changed
fi
