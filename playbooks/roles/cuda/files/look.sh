#!/bin/sh
# Tells, as JSON, what toolkit of this release the machine has; changes nothing. A package older than asked for is lacking.
#   look.sh RELEASE PACKAGE[=VERSION]...
set -u
home=/usr/local/cuda-$1
shift
truth() { if "$@" >/dev/null 2>&1; then echo true; else echo false; fi; }
header=$(ls /usr/include/*-linux-gnu/cudnn_version.h /usr/include/cudnn_version.h "$home/include/cudnn_version.h" \
  2>/dev/null | head -1)
number() { sed -n "s/^#define CUDNN_$1  *\([0-9]*\).*/\1/p" "$header"; }

release=$("$home/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
cudnn=${header:+$(number MAJOR).$(number MINOR).$(number PATCHLEVEL)}
lacking=
for package; do
  seen=$(dpkg-query -W -f '${db:Status-Status} ${Version}' "${package%%=*}" 2>/dev/null)
  case $package in *=*) oldest=${package#*=} ;; *) oldest=0 ;; esac
  case $seen in
    "installed "*) ! dpkg --compare-versions "${seen#* }" ge "$oldest" || continue ;;
  esac
  lacking="$lacking${lacking:+, }\"$package\""
done
# NVIDIA's own installer, which deep-learning images are made with, leaves nothing that dpkg knows of.
printf '{"release": "%s", "cudnn": "%s", "lacking": [%s], "packaged": %s}\n' "$release" "$cudnn" \
  "$lacking" "$(truth dpkg-query -S "$home/bin/nvcc")"
