#!/bin/sh
# Switch on persistence mode and set the clocks of all GPUs. Prints `changed` if anything was changed, and `note: ...`
# for a refused clock.
#   configure-gpus.sh MEMORY_MHZ,GRAPHICS_MHZ|''
set -eu
clocks=$1

fail() { echo "$*" >&2; exit 1; }

# Some systems start the persistence daemon with persistence mode off.
if nvidia-smi --query-gpu=persistence_mode --format=csv,noheader | grep -qv Enabled; then
  nvidia-smi -pm 1 >&2 || fail "nvidia-smi cannot switch on persistence mode"
  echo changed
fi

query() { nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>&1 | tr -d ' '; }

# Lock the clocks if the driver has no application clocks: NVML has removed them, and newer drivers return text.
# https://docs.nvidia.com/deploy/nvml-api/Deprecations.html
# The lock cannot be queried, only the current clocks. A refusal does not fail the node.
lock_clocks() {
  before=$(query clocks.mem,clocks.gr)
  echo "$before" | grep -qvx "$clocks" || return 0
  for option in "-lmc ${clocks%,*},${clocks%,*}" "-lgc ${clocks#*,},${clocks#*,}"; do
    # shellcheck disable=SC2086 # two arguments
    output=$(nvidia-smi $option 2>&1) || echo "note: nvidia-smi $option is refused: $(echo "$output" | paste -sd' ' -)"
  done
  [ "$(query clocks.mem,clocks.gr)" = "$before" ] || echo changed
}

if [ -n "$clocks" ]; then
  current=$(query clocks.applications.memory,clocks.applications.graphics)
  if echo "$current" | grep -Eqvx '[0-9]+,[0-9]+'; then
    lock_clocks
  elif echo "$current" | grep -qvx "$clocks"; then
    output=$(nvidia-smi -ac "$clocks" 2>&1) || fail "nvidia-smi refuses the application clocks $clocks" \
      "(memory,graphics, MHz): $output. 'nvidia-smi -q -d SUPPORTED_CLOCKS' lists the supported values."
    echo changed
  fi
fi
