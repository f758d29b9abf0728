#!/bin/sh
# Verify that the disk has no state that must be unique per machine. Prints one line per problem to stderr.
#   verify.sh BASE
set -eu
base=$1
status=0

report_problem() { echo "$*" >&2; status=1; }

[ ! -s /etc/machine-id ] || report_problem "/etc/machine-id is not empty"
for path in /etc/ssh/ssh_host_* /etc/hostname /var/lib/cloud/instance /var/lib/cloud/instances/* \
  /var/lib/dbus/machine-id /var/lib/systemd/random-seed /var/lib/systemd/credential.secret /var/lib/amazon/ssm/i-* \
  /var/log/journal/* /var/lib/apt/lists/* /var/cache/apt/archives/*.deb /root/.bash_history /home/*/.bash_history \
  /etc/systemd/system/trainyard-node.service /etc/systemd/system/*.wants/trainyard-node.service; do
  if [ -e "$path" ] || [ -L "$path" ]; then
    report_problem "$path still exists"
  fi
done
# Files of later releases must be added either here, if the image may contain them, or to clean.sh.
for path in "$base"/* "$base"/.[!.]*; do
  [ -e "$path" ] || [ -L "$path" ] || continue
  case ${path#"$base"/} in
    bundle|bin|venvs|venv|job-venv|imported|bootstrap.py|scratch|__pycache__) ;;
    *) report_problem "$path must not be in an image" ;;
  esac
done
exit $status
