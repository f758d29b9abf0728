#!/bin/sh
# Looks at the system itself; says each thing that is not as it should be, and as a note what can't be known.
#   verify.sh GPUS MODEL MINIMUM fabric|- MEMORY,GRAPHICS|''
set -u
gpus=$1 model=$2 minimum=$3 fabric=$4 clocks=$5
wrong=0

complain() { echo "$*" >&2; wrong=1; }

ask() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits; }

if ! names=$(ask name 2>&1); then
  echo "nvidia-smi fails: $names" >&2
  exit 1
fi
count=$(echo "$names" | grep -c .)
[ "$count" = "$gpus" ] || complain "nvidia-smi sees $count GPUs, and the instance type has $gpus:" \
  "a GPU that fell off the bus shows as Xid 79 in 'dmesg'; replace the node"
if [ -n "$model" ]; then
  others=$(echo "$names" | grep -Evi "(^|[ -])$model([ -]|\$)" | sort -u | paste -sd, -)
  [ -z "$others" ] || complain "GPUs are $others, and the instance type has $model"
fi

module=$(cat /sys/module/nvidia/version 2>/dev/null)
driver=$(ask driver_version | sort -u)
[ "$driver" = "$module" ] || complain "nvidia-smi says driver $driver, and the kernel has ${module:-none} loaded"
[ "$(printf '%s\n%s\n' "$minimum" "$driver" | sort -V | head -1)" = "$minimum" ] ||
  complain "the driver is $driver, older than $minimum"

if [ "$fabric" = fabric ]; then
  version=$(nv-fabricmanager --version 2>/dev/null | sed -n 's/.*version is : *\([0-9.]*\).*/\1/p' | head -1)
  [ "$version" = "$driver" ] || complain "Fabric Manager is ${version:-not there}, and the driver is $driver"
  state=$(systemctl is-active nvidia-fabricmanager.service)
  [ "$state" = active ] || complain "nvidia-fabricmanager.service is $state"
  # Hopper and newer join the fabric one by one; CUDA says error 802 until they have. Ampere tells no state.
  tries=60
  while nvidia-smi -q | grep -A1 '^ *Fabric *$' | grep -Eq 'State *: *(In Progress|Not Started)'; do
    tries=$((tries - 1))
    if [ $tries = 0 ]; then
      complain "GPUs do not join NVSwitch's fabric within two minutes: look at 'journalctl -u nvidia-fabricmanager'"
      break
    fi
    sleep 2
  done
fi

off=$(ask persistence_mode | grep -cv Enabled)
[ "$off" = 0 ] || complain "persistence mode is off on $off GPUs"
if [ -n "$clocks" ]; then
  told=$(ask clocks.applications.memory,clocks.applications.graphics 2>&1 | tr -d ' ')
  if echo "$told" | grep -Eqvx '[0-9]+,[0-9]+'; then
    others=$(ask clocks.mem,clocks.gr | tr -d ' ' | grep -vx "$clocks" | sort -u | paste -sd' ' -)
    [ -z "$others" ] || echo "note: clocks are $others MHz now (memory,graphics), not $clocks. Driver $driver has no" \
      "application clocks, and does not tell whether clocks are locked: heat and power limits lower those, too"
  else
    others=$(echo "$told" | grep -vx "$clocks" | sort -u)
    [ -z "$others" ] || complain "application clocks are $(echo "$others" | paste -sd' ' -), not $clocks"
  fi
fi
exit $wrong
