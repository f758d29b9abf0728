#!/bin/sh
# Hold the packages of a CUDA release, and make /usr/local/cuda point to it. Prints `changed` if anything was changed.
#   select-toolkit.sh RELEASE
set -eu
release=$1
home=/usr/local/cuda-$release

packages=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' |
  sed -En "s/^installed (.*-$(echo "$release" | tr . -)|libcudnn.*-cuda-${release%%.*})\$/\1/p")
if [ -n "$packages" ]; then
  # shellcheck disable=SC2086 # one argument per package
  apt-mark hold $packages | grep -v already >&2 && echo changed || true
fi

if [ "$(readlink -f /usr/local/cuda)" != "$home" ]; then
  if update-alternatives --query cuda 2>/dev/null | grep -qx "Alternative: $home"; then
    update-alternatives --set cuda "$home" >&2
  else
    ln -sfn "$home" /usr/local/cuda
  fi
  echo changed
fi
