#!/bin/sh
# Verify the CUDA toolkit. Prints one line per problem to stderr; exit status 0 or 1.
#   verify.sh RELEASE ENVIRONMENT_FILE CUDNN_VERSION|''
set -u
release=$1 file=$2 cudnn=$3
status=0

report_problem() { echo "$*" >&2; status=1; }

home=$(sed -n 's/^CUDA_HOME=//p' "$file")
[ "$(readlink -f /usr/local/cuda)" = "$home" ] || report_problem "/usr/local/cuda is not $home"
if output=$("$home/bin/nvcc" --version 2>&1); then
  version=$(echo "$output" | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  [ "$version" = "$release" ] || report_problem "$home/bin/nvcc is of CUDA ${version:-unknown}, not $release"
else
  report_problem "$home/bin/nvcc does not run: $output"
fi
[ -e "$home/include/cuda_runtime.h" ] || report_problem "$home has no headers of the CUDA runtime"
command -v g++ >/dev/null || report_problem "g++, which nvcc needs for host code, is not installed"

if [ -n "$cudnn" ]; then
  header=$(ls /usr/include/*-linux-gnu/cudnn_version.h /usr/include/cudnn_version.h "$home/include/cudnn_version.h" \
    2>/dev/null | head -1)
  version=$(sed -n 's/^#define CUDNN_\(MAJOR\|MINOR\|PATCHLEVEL\)  *\([0-9]*\).*/\2/p' "${header:-/dev/null}" |
    paste -sd.)
  case $cudnn in
    "$version"|"${version:-none}".*) ;;
    *) report_problem "the cuDNN header is of version ${version:-unknown}, not $cudnn" ;;
  esac
fi
exit $status
