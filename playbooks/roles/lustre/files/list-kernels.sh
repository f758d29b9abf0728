#!/bin/sh
# Print the kernels that apt has a Lustre client for, oldest first, and `installable KERNEL` for those of the running
# kernel's flavor (such as aws) that apt can install.
set -eu
flavor=$(uname -r)
flavor=${flavor##*-}
apt-cache --names-only search '^lustre-client-modules-[0-9]' |
  sed 's/^lustre-client-modules-\([^ ]*\) .*/\1/' | sort -V |
  while read -r kernel; do
    echo "$kernel"
    if [ "${kernel##*-}" = "$flavor" ] && apt-cache show "linux-image-$kernel" > /dev/null 2>&1; then
      echo "installable $kernel"
    fi
  done
