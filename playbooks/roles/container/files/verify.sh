#!/bin/sh
# Looks at the system itself; says each thing that is not as it should be.
#   verify.sh gpus|- MINIMUM DATA_FOLDER|'' IMAGE|'' BIN
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
[ -z "$image" ] || docker image inspect "$image" >/dev/null 2>&1 || complain "the image $image is not there"
[ -x "$bin/in-container" ] || complain "there is no $bin/in-container"
exit $wrong
