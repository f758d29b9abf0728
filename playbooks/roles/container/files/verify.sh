#!/bin/sh
# Verify Docker and the container wrapper. Prints one line per problem to stderr; exit status 0 or 1.
#   verify.sh gpus|- MINIMUM_TOOLKIT_VERSION DATA_ROOT|'' IMAGE|'' WRAPPER
# If IMAGE is set, a container of it must run Python by the wrapper, as the job will.
set -u
gpus=$1 minimum=$2 data_root=$3 image=$4 wrapper=$5
status=0

report_problem() { echo "$*" >&2; status=1; }

if ! info=$(docker info --format '{{.DockerRootDir}} {{range $name, $_ := .Runtimes}}{{$name}} {{end}}' 2>&1); then
  echo "docker info fails: $info; docker.service is $(systemctl is-active docker.service)" >&2
  exit 1
fi
if [ "$gpus" = gpus ]; then
  case " ${info#* } " in
    *" nvidia "*) ;;
    *) report_problem "Docker has the runtimes '${info#* }', and not nvidia: containers would have no GPU" ;;
  esac
  command -v nvidia-container-runtime >/dev/null || report_problem "nvidia-container-runtime is not installed"
  version=$(nvidia-ctk --version 2>/dev/null | sed -n 's/.*version \([0-9.]*\).*/\1/p' | head -1)
  [ "$(printf '%s\n%s\n' "$minimum" "$version" | sort -V | head -1)" = "$minimum" ] ||
    report_problem "the NVIDIA Container Toolkit is ${version:-not installed}, older than $minimum"
fi
[ -z "$data_root" ] || [ "${info%% *}" = "$data_root" ] ||
  report_problem "Docker stores its images in ${info%% *}, not in $data_root"
if [ -n "$data_root" ]; then
  for file in "/proc/$(systemctl show --property=MainPID --value docker.service)"/fd/*; do
    case $(readlink "$file") in
      "$data_root"/*)
        [ "$(stat -L -c %d "$file")" = "$(stat -c %d "$data_root")" ] && continue
        report_problem "Docker was started before $data_root was mounted, and writes to the directory below the mount"
        break
        ;;
    esac
  done
fi
[ -x "$wrapper" ] || report_problem "$wrapper is not an executable file"
[ -n "$image" ] || exit $status
if ! docker image inspect "$image" >/dev/null 2>&1; then
  report_problem "the image $image is not pulled"
  exit 1
fi
if [ -n "$data_root" ]; then
  # Images in containerd's store have no such directory.
  layers=$(docker image inspect --format '{{with .GraphDriver}}{{.Data.UpperDir}}{{end}}' "$image" 2>/dev/null)
  case $layers in
    "$data_root"/*) [ -d "$layers" ] || report_problem "the image $image needs $layers, which does not exist" ;;
    *) report_problem "the image $image is stored in ${layers:-containerd}, not in $data_root" ;;
  esac
fi
[ $status = 0 ] || exit 1
probe='import glob, sys; sys.exit(0 if "'$gpus'" != "gpus" or glob.glob("/dev/nvidia[0-9]*") else "it has no GPU")'
if ! output=$(TRAINYARD_CONTAINER=trainyard-verify timeout 300 "$wrapper" "$image" python -c "$probe" 2>&1); then
  report_problem "a container of $image does not run Python: $(echo "$output" | tail -n 5)"
fi
exit $status
