#!/bin/sh
# Print the installed toolkit of a CUDA release as JSON. `missing` includes older packages. Changes nothing.
#   detect-toolkit.sh RELEASE PACKAGE[=VERSION]...
set -u
home=/usr/local/cuda-$1
shift
succeeds() { if "$@" >/dev/null 2>&1; then echo true; else echo false; fi; }
header=$(ls /usr/include/*-linux-gnu/cudnn_version.h /usr/include/cudnn_version.h "$home/include/cudnn_version.h" \
  2>/dev/null | head -1)
cudnn_number() { sed -n "s/^#define CUDNN_$1  *\([0-9]*\).*/\1/p" "$header"; }

release=$("$home/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
cudnn=${header:+$(cudnn_number MAJOR).$(cudnn_number MINOR).$(cudnn_number PATCHLEVEL)}
missing=
for package; do
  state=$(dpkg-query -W -f '${db:Status-Status} ${Version}' "${package%%=*}" 2>/dev/null)
  case $package in *=*) minimum=${package#*=} ;; *) minimum=0 ;; esac
  case $state in
    "installed "*) ! dpkg --compare-versions "${state#* }" ge "$minimum" || continue ;;
  esac
  missing="$missing${missing:+, }\"$package\""
done
# dpkg does not know the files of NVIDIA's own installer, which deep learning images are built with.
printf '{"release": "%s", "cudnn": "%s", "missing": [%s], "packaged": %s}\n' "$release" "$cudnn" \
  "$missing" "$(succeeds dpkg-query -S "$home/bin/nvcc")"
