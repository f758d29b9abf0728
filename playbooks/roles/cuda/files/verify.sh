#!/bin/sh
# Looks at the system itself; says each thing that is not as it should be.
#   verify.sh RELEASE ENVIRONMENT_FILE CUDNN|''
set -u
release=$1 file=$2 cudnn=$3
wrong=0

complain() { echo "$*" >&2; wrong=1; }

home=$(sed -n 's/^CUDA_HOME=//p' "$file")
[ "$(readlink -f /usr/local/cuda)" = "$home" ] || complain "/usr/local/cuda is not $home"
if told=$("$home/bin/nvcc" --version 2>&1); then
  seen=$(echo "$told" | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  [ "$seen" = "$release" ] || complain "$home/bin/nvcc is of CUDA ${seen:-none}, not $release"
else
  complain "$home/bin/nvcc does not run: $told"
fi
[ -e "$home/include/cuda_runtime.h" ] || complain "$home has no headers of CUDA's runtime"
command -v g++ >/dev/null || complain "there is no g++, which nvcc compiles the host's code with"

if [ -n "$cudnn" ]; then
  header=$(ls /usr/include/*-linux-gnu/cudnn_version.h /usr/include/cudnn_version.h "$home/include/cudnn_version.h" \
    2>/dev/null | head -1)
  seen=$(sed -n 's/^#define CUDNN_\(MAJOR\|MINOR\|PATCHLEVEL\)  *\([0-9]*\).*/\2/p' "${header:-/dev/null}" | paste -sd.)
  case $cudnn in
    "$seen"|"${seen:-none}".*) ;;
    *) complain "cuDNN's header is of ${seen:-none}, not $cudnn" ;;
  esac
fi
exit $wrong
