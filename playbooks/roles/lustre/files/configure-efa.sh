#!/bin/sh
# Configure LNet of the Lustre client with TCP on the interface of the default route and with EFA interfaces, which it
# prefers. The interfaces are spread evenly over those of the node. The sources are the FSx for Lustre guide, "Configuring
# EFA clients", and the EKS user guide, "Optimize Amazon FSx for Lustre performance on nodes (EFA)".
#   configure-efa.sh INTERFACES [DEVICES]
set -eu
wanted=$1 devices=${2:-/sys/class/infiniband}

configured() { lnetctl net show --net efa 2>/dev/null | grep -c '@efa' || true; }

set --
for device in "$devices"/*; do
  driver=$(readlink -f "$device/device/driver") || continue
  if [ "${driver##*/}" = efa ]; then set -- "$@" "${device##*/}"; fi
done
if [ $# -eq 0 ]; then echo "the node has no EFA interface" >&2; exit 1; fi
if [ "$wanted" -gt $# ]; then wanted=$#; fi
if [ "$(configured)" -eq "$wanted" ]; then exit 0; fi

address=$(ip -o -4 route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p;q')
if [ -e /sys/module/lnet ]; then lustre_rmmod >&2; fi
modprobe lnet
modprobe kefalnd "ipif_name=$address"
modprobe ksocklnd
lnetctl lnet configure
lnetctl net del --net tcp 2>/dev/null || true
lnetctl net add --net tcp --if "$address"
number=0 added=0
for device; do
  if [ $((number * wanted / $#)) -eq $added ] && [ $added -lt "$wanted" ]; then
    lnetctl net add --net efa --if "$device" --peer-credits 32
    added=$((added + 1))
  fi
  number=$((number + 1))
done
lnetctl set discovery 1
lnetctl udsp add --src efa --priority 0
modprobe lustre
if [ "$(configured)" -ne "$wanted" ]; then
  echo "LNet has $(configured) of $wanted EFA interfaces: check lnetctl net show" >&2
  exit 1
fi
