#!/bin/sh
# Load the EFA driver, and make the dynamic loader find the OFI plugin. Prints `changed` if anything was changed.
#   configure-plugin.sh PLUGIN
set -eu
plugin=$1

# If the driver cannot be loaded, the verification of the devices fails and reports it.
if [ ! -d /sys/module/efa ] && modprobe efa 2>/dev/null; then
  echo changed
fi

folder=$(find -H /opt/amazon/ofi-nccl /opt/amazon/aws-ofi-nccl -name 'libnccl-net*.so' -printf '%h\n' 2>/dev/null |
  sort -u | head -n 1)
[ -n "$folder" ] || exit 0

# Older plugins have only the name that NCCL loads if NCCL_NET_PLUGIN is not set.
if [ ! -e "$folder/$plugin" ]; then
  ln -sfn libnccl-net.so "$folder/$plugin"
  echo changed
fi
is_registered() { ldconfig -p | grep -qF "=> $folder/$plugin"; }
if ! is_registered; then
  if ! ldconfig || ! is_registered; then
    echo "$folder" > /etc/ld.so.conf.d/60-trainyard-ofi-nccl.conf
    ldconfig
  fi
  echo changed
fi
