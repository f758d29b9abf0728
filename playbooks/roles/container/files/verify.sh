#!/bin/sh
# Looks at the system itself; says each thing that is not as it should be.
#   verify.sh gpus|- MINIMUM DATA_FOLDER|'' IMAGE|'' BIN
# With an image, a container of it runs, as the job's will.
set -u
gpus=$1 minimum=$2 data=$3 image=$4 bin=$5
wrong=0

complain() { echo "$*" >&2; wrong=1; }

if ! told=$(docker info --format '{{.DockerRootDir}} {{range $name, $_ := .Runtimes}}{{$name}} {{end}}' 2>&1); then
  echo "Docker does not answer: $told; docker.service is $(systemctl is-active docker.service)" >&2
  exit 1
fi
if [ "$gpus" = gpus ]; then
  case " ${told#* } " in
    *" nvidia "*) ;;
    *) complain "Docker knows the runtimes '${told#* }', and not NVIDIA's: containers would see no GPU" ;;
  esac
  command -v nvidia-container-runtime >/dev/null || complain "there is no nvidia-container-runtime"
  version=$(nvidia-ctk --version 2>/dev/null | sed -n 's/.*version \([0-9.]*\).*/\1/p' | head -1)
  [ "$(printf '%s\n%s\n' "$minimum" "$version" | sort -V | head -1)" = "$minimum" ] ||
    complain "NVIDIA's container toolkit is ${version:-not there}, older than $minimum"
fi
[ -z "$data" ] || [ "${told%% *}" = "$data" ] || complain "Docker keeps its images in ${told%% *}, not in $data"
if [ -n "$data" ]; then
  for file in "/proc/$(systemctl show --property=MainPID --value docker.service)"/fd/*; do
    case $(readlink "$file") in
      "$data"/*)
        [ "$(stat -L -c %d "$file")" = "$(stat -c %d "$data")" ] && continue
        complain "Docker was started before $data was mounted, and writes to the folder below"
        break
        ;;
    esac
  done
fi
[ -x "$bin/in-container" ] || complain "there is no $bin/in-container"
[ -n "$image" ] || exit $wrong
if ! docker image inspect "$image" >/dev/null 2>&1; then
  complain "the image $image is not there"
  exit 1
fi
if [ -n "$data" ]; then
  # Where the image store is containerd's, the image tells of no such folder.
  layers=$(docker image inspect --format '{{with .GraphDriver}}{{.Data.UpperDir}}{{end}}' "$image" 2>/dev/null)
  case $layers in
    "$data"/*) [ -d "$layers" ] || complain "the image $image lies in $layers, which is not there" ;;
    *) complain "the image $image lies in ${layers:-containerd}, not in $data" ;;
  esac
fi
[ $wrong = 0 ] || exit 1
see='import glob, sys; sys.exit(0 if "'$gpus'" != "gpus" or glob.glob("/dev/nvidia[0-9]*") else "it sees no GPU")'
if ! told=$(TRAINYARD_CONTAINER=trainyard-verify timeout 300 "$bin/in-container" "$image" python -c "$see" 2>&1); then
  complain "no container of $image runs Python as the job will: $(echo "$told" | tail -n 5)"
fi
exit $wrong
