#!/bin/sh
# Tells, as JSON, what driver this machine has; changes nothing.
set -u
yes() { if "$@" >/dev/null 2>&1; then echo true; else echo false; fi; }
version() { "$@" 2>/dev/null | sed -n 's/.*version is : *\([0-9.]*\).*/\1/p' | head -1; }
manages_subnets() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' nvlsm)" = installed ] || [ -x /opt/nvidia/nvlsm/sbin/nvlsm ]
}

kernel=$(uname -r)
printf '{"kernel": "%s", "driver": "%s", "fabric_manager": "%s", ' \
  "$kernel" "$(modinfo -k "$kernel" -F version nvidia 2>/dev/null)" "$(version nv-fabricmanager --version)"
# NVIDIA's own installer leaves the program that removes it; packages bring none.
printf '"smi": %s, "subnet_manager": %s, "runfile": %s}\n' \
  "$(yes command -v nvidia-smi)" "$(yes manages_subnets)" "$(yes command -v nvidia-uninstall)"
