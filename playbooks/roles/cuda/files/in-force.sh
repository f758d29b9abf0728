#!/bin/sh
# Has the toolkit be the machine's own, held, and known to the job. Says `changed` where it had not been so.
#   in-force.sh RELEASE ENVIRONMENT_FILE
set -eu
release=$1 file=$2
home=/usr/local/cuda-$release

own=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' |
  sed -En "s/^installed (.*-$(echo "$release" | tr . -)|libcudnn.*-cuda-${release%%.*})\$/\1/p")
if [ -n "$own" ]; then
  # shellcheck disable=SC2086 # one word a package
  apt-mark hold $own | grep -v already >&2 && echo changed || true
fi

if [ "$(readlink -f /usr/local/cuda)" != "$home" ]; then
  if update-alternatives --query cuda 2>/dev/null | grep -qx "Alternative: $home"; then
    update-alternatives --set cuda "$home" >&2
  else
    ln -sfn "$home" /usr/local/cuda
  fi
  echo changed
fi

# The job's unit reads files of NAME=VALUE. They can't lengthen PATH: torch and CMake find the compiler by these.
wanted="CUDA_HOME=$home
CUDACXX=$home/bin/nvcc"
shell="export CUDA_HOME=$home CUDACXX=$home/bin/nvcc
export PATH=\"\$PATH:$home/bin\""
write() {
  [ "$(cat "$1" 2>/dev/null)" = "$2" ] && return
  mkdir -p "$(dirname "$1")"
  echo "$2" > "$1.new"
  chmod 0644 "$1.new"
  mv "$1.new" "$1"
  echo changed
}
write "$file" "$wanted"
write /etc/profile.d/trainyard-cuda.sh "$shell"
