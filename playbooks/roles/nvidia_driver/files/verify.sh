#!/bin/sh
# Verify the GPUs and their driver. Prints one line per problem to stderr, and `note: ...` if a value cannot be known.
#   verify.sh GPUS MODEL MINIMUM_VERSION fabric|- MEMORY_MHZ,GRAPHICS_MHZ|''
set -u
gpus=$1 model=$2 minimum=$3 fabric=$4 clocks=$5
status=0

report_problem() { echo "$*" >&2; status=1; }

query() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits; }

if ! names=$(query name 2>&1); then
  echo "nvidia-smi fails: $names" >&2
  exit 1
fi
count=$(echo "$names" | grep -c .)
[ "$count" = "$gpus" ] || report_problem "nvidia-smi lists $count GPUs, and the instance type has $gpus:" \
  "check 'dmesg' for Xid 79 (a GPU has fallen off the bus), and replace the node"
if [ -n "$model" ]; then
  others=$(echo "$names" | grep -Evi "(^|[ -])$model([ -]|\$)" | sort -u | paste -sd, -)
  [ -z "$others" ] || report_problem "GPUs are $others, and the instance type has $model"
fi

module=$(cat /sys/module/nvidia/version 2>/dev/null)
driver=$(query driver_version | sort -u)
[ "$driver" = "$module" ] ||
  report_problem "nvidia-smi reports driver $driver, and the kernel has ${module:-none} loaded"
[ "$(printf '%s\n%s\n' "$minimum" "$driver" | sort -V | head -1)" = "$minimum" ] ||
  report_problem "the driver is $driver, older than $minimum"

if [ "$fabric" = fabric ]; then
  version=$(nv-fabricmanager --version 2>/dev/null | sed -n 's/.*version is : *\([0-9.]*\).*/\1/p' | head -1)
  [ "$version" = "$driver" ] || report_problem "Fabric Manager is ${version:-not installed}, and the driver is $driver"
  state=$(systemctl is-active nvidia-fabricmanager.service)
  [ "$state" = active ] || report_problem "nvidia-fabricmanager.service is $state"
  # Hopper and newer register with the fabric one by one; CUDA returns error 802 until then. Ampere reports no state.
  attempts=60
  while nvidia-smi -q | grep -A1 '^ *Fabric *$' | grep -Eq 'State *: *(In Progress|Not Started)'; do
    attempts=$((attempts - 1))
    if [ $attempts = 0 ]; then
      report_problem "GPUs have not registered with the NVSwitch fabric within two minutes: check" \
        "'journalctl -u nvidia-fabricmanager'"
      break
    fi
    sleep 2
  done
fi

off=$(query persistence_mode | grep -cv Enabled)
[ "$off" = 0 ] || report_problem "persistence mode is off on $off GPUs"
if [ -n "$clocks" ]; then
  application_clocks=$(query clocks.applications.memory,clocks.applications.graphics 2>&1 | tr -d ' ')
  if echo "$application_clocks" | grep -Eqvx '[0-9]+,[0-9]+'; then
    others=$(query clocks.mem,clocks.gr | tr -d ' ' | grep -vx "$clocks" | sort -u | paste -sd' ' -)
    [ -z "$others" ] || echo "note: clocks are $others MHz now (memory,graphics), not $clocks. Driver $driver has no" \
      "application clocks and does not report locked clocks: heat and power limits lower clocks, too"
  else
    others=$(echo "$application_clocks" | grep -vx "$clocks" | sort -u)
    [ -z "$others" ] || report_problem "application clocks are $(echo "$others" | paste -sd' ' -), not $clocks"
  fi
fi
exit $status
