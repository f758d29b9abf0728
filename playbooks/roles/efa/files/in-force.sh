#!/bin/sh
# Has the driver loaded and the loader find the plugin. Says `changed` where it had not.
#   in-force.sh PLUGIN
set -eu
plugin=$1

# What is wrong with a driver that can't be loaded shows in the count of devices.
if [ ! -d /sys/module/efa ] && modprobe efa 2>/dev/null; then
  echo changed
fi

where=$(find -H /opt/amazon/ofi-nccl /opt/amazon/aws-ofi-nccl -name 'libnccl-net*.so' -printf '%h\n' 2>/dev/null |
  sort -u | head -n 1)
[ -n "$where" ] || exit 0

# Older plugins bear the name alone that NCCL looks for where none is asked for.
if [ ! -e "$where/$plugin" ]; then
  ln -sfn libnccl-net.so "$where/$plugin"
  echo changed
fi
found() { ldconfig -p | grep -qF "=> $where/$plugin"; }
if ! found; then
  if ! ldconfig || ! found; then
    echo "$where" > /etc/ld.so.conf.d/60-trainyard-ofi-nccl.conf
    ldconfig
  fi
  echo changed
fi
