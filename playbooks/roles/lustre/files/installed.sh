#!/bin/sh
# The running kernel, and `installed` where a client for it is there: the image's own or one of AWS's packages.
set -eu
kernel=$(uname -r)
echo "$kernel"
command -v mount.lustre > /dev/null || exit 0
if modinfo -k "$kernel" lustre > /dev/null 2>&1 ||
  [ "$(dpkg-query -W -f '${db:Status-Status}' "lustre-client-modules-$kernel" 2>/dev/null)" = installed ]; then
  echo installed
fi
