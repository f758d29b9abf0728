#!/bin/sh
# Print one value per line: running kernel, normalized mount point, name of its systemd units without the suffix,
# `client installed` if there is a Lustre client for the kernel (the image's or AWS's packages), and
# `mounted from SOURCE` for each file system at the mount point. Changes nothing.
#   detect-client.sh MOUNT_POINT
set -eu
kernel=$(uname -r)
mount_point=$(realpath --no-symlinks --canonicalize-missing "$1")
echo "$kernel"
echo "$mount_point"
systemd-escape --path "$mount_point"
if command -v mount.lustre > /dev/null; then
  if modinfo -k "$kernel" lustre > /dev/null 2>&1 ||
    [ "$(dpkg-query -W -f '${db:Status-Status}' "lustre-client-modules-$kernel" 2>/dev/null)" = installed ]; then
    echo 'client installed'
  fi
fi
while read -r source directory type _; do
  [ "$directory" != "$mount_point" ] || [ "$type" = autofs ] || echo "mounted from $source"
done < /proc/mounts
