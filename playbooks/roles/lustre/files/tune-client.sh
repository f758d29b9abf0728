#!/bin/sh
# Set the parameters of the Lustre client by the FSx for Lustre guide, "Performance tips": for more than 64 GiB of
# memory, and for more than 64 vCPUs.
set -eu
vcpus=$(nproc --all)
memory_kib=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
if [ "$memory_kib" -gt $((64 * 1024 * 1024)) ]; then
  lctl set_param 'ldlm.namespaces.*.lru_max_age=600000' "ldlm.namespaces.*.lru_size=$((100 * vcpus))"
fi
if [ "$vcpus" -gt 64 ]; then
  # mdc's max_mod_rpcs_in_flight must be below its max_rpcs_in_flight.
  lctl set_param 'osc.*OST*.max_rpcs_in_flight=32' 'mdc.*.max_rpcs_in_flight=64'
  lctl set_param 'mdc.*.max_mod_rpcs_in_flight=50'
fi
