#!/bin/sh
# Print the version of the installed EFA software; nothing if a part is missing, as after installation with --minimal.
set -eu
packages=/opt/amazon/efa_installed_packages
[ -r "$packages" ] && [ -x /opt/amazon/efa/bin/fi_info ] || exit 0
[ -n "$(find -H /opt/amazon/ofi-nccl /opt/amazon/aws-ofi-nccl -name 'libnccl-net*.so' 2>/dev/null)" ] || exit 0
sed -n 's/^# *EFA installer version: *//p' "$packages" | head -n 1
