#!/bin/sh
# Configure LNet of the Lustre client with TCP on the interface of the default route and with EFA interfaces, which it
# prefers. The interfaces are distributed evenly over the EFA devices of the node. The sources are the FSx for Lustre guide, "Configuring
# EFA clients", and the EKS user guide, "Optimize Amazon FSx for Lustre performance on nodes (EFA)".
#   configure-efa.sh INTERFACES [DEVICES]
set -eu
requested=$1 devices=${2:-/sys/class/infiniband}

count_configured() { lnetctl net show --net efa 2>/dev/null | grep -c '@efa' || true; }

set --
for device in "$devices"/*; do
  driver=$(readlink -f "$device/device/driver") || continue
  if [ "${driver##*/}" = efa ]; then set -- "$@" "${device##*/}"; fi
done
if [ $# -eq 0 ]; then echo "$devices has no EFA device: check the instance type and the EFA driver (modinfo efa)" >&2; exit 1; fi
if [ "$requested" -gt $# ]; then requested=$#; fi
if [ "$(count_configured)" -eq "$requested" ]; then exit 0; fi

interface=$(ip -o -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p;q')
if [ -e /sys/module/lnet ]; then lustre_rmmod >&2; fi
modprobe lnet
modprobe kefalnd "ipif_name=$interface"
modprobe ksocklnd
lnetctl lnet configure
lnetctl net del --net tcp 2>/dev/null || true
lnetctl net add --net tcp --if "$interface"
number=0 added=0
for device; do
  if [ $((number * requested / $#)) -eq $added ] && [ $added -lt "$requested" ]; then
    lnetctl net add --net efa --if "$device" --peer-credits 32
    added=$((added + 1))
  fi
  number=$((number + 1))
done
lnetctl set discovery 1
lnetctl udsp add --src efa --priority 0
modprobe lustre
if [ "$(count_configured)" -ne "$requested" ]; then
  echo "LNet has $(count_configured) of $requested EFA interfaces: check lnetctl net show and dmesg" >&2
  exit 1
fi
