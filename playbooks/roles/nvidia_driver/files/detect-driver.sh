#!/bin/sh
# Print the installed driver and its components as JSON. Changes nothing.
set -u
succeeds() { if "$@" >/dev/null 2>&1; then echo true; else echo false; fi; }
version() { "$@" 2>/dev/null | sed -n 's/.*version is : *\([0-9.]*\).*/\1/p' | head -1; }
has_subnet_manager() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' nvlsm)" = installed ] || [ -x /opt/nvidia/nvlsm/sbin/nvlsm ]
}

kernel=$(uname -r)
printf '{"kernel": "%s", "driver": "%s", "fabric_manager": "%s", ' \
  "$kernel" "$(modinfo -k "$kernel" -F version nvidia 2>/dev/null)" "$(version nv-fabricmanager --version)"
# Only NVIDIA's own installer (.run file) installs the program nvidia-uninstall.
printf '"smi": %s, "subnet_manager": %s, "runfile": %s}\n' \
  "$(succeeds command -v nvidia-smi)" "$(succeeds has_subnet_manager)" "$(succeeds command -v nvidia-uninstall)"
