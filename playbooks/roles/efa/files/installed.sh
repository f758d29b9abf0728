#!/bin/sh
# Version of the EFA software that this system has, as its installer has left it; nothing where a part is missing, as
# after --minimal.
set -eu
list=/opt/amazon/efa_installed_packages
[ -r "$list" ] && [ -x /opt/amazon/efa/bin/fi_info ] || exit 0
[ -n "$(find -H /opt/amazon/ofi-nccl /opt/amazon/aws-ofi-nccl -name 'libnccl-net*.so' 2>/dev/null)" ] || exit 0
sed -n 's/^# *EFA installer version: *//p' "$list" | head -n 1
