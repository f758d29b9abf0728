#!/bin/sh
# Print the kernels that apt has a Lustre client for, oldest first.
set -eu
apt-cache --names-only search '^lustre-client-modules-[0-9]' | sed 's/^lustre-client-modules-\([^ ]*\) .*/\1/' | sort -V
