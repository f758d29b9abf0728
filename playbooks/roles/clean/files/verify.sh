#!/bin/sh
# Looks for what is one machine's own and would be every node's; says each thing: verify.sh BASE
set -eu
base=$1
wrong=0

complain() { echo "$*" >&2; wrong=1; }

[ ! -s /etc/machine-id ] || complain "/etc/machine-id is not empty"
for path in /etc/ssh/ssh_host_* /etc/hostname /var/lib/cloud/instance /var/lib/cloud/instances/* \
  /var/lib/dbus/machine-id /var/lib/systemd/random-seed /var/lib/systemd/credential.secret /var/lib/amazon/ssm/i-* \
  /var/log/journal/* /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /root/.bash_history /home/*/.bash_history \
  /etc/systemd/system/trainyard-node.service /etc/systemd/system/*.wants/trainyard-node.service; do
  if [ -e "$path" ] || [ -L "$path" ]; then
    complain "$path is still there"
  fi
done
# Whatever a later release puts there is somebody's to decide on: it comes along with the image, or clean.sh takes it.
for path in "$base"/* "$base"/.[!.]*; do
  [ -e "$path" ] || [ -L "$path" ] || continue
  case ${path#"$base"/} in
    bundle|bin|venvs|venv|job-venv|imported|bootstrap.py|scratch|__pycache__) ;;
    *) complain "$path is nothing that an image shall have" ;;
  esac
done
exit $wrong
