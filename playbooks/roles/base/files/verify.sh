#!/bin/sh
# Looks at the system itself, not at what was written for it; says each thing that is not as it should be.
#   verify.sh container|machine
set -eu
wrong=0

complain() { echo "$*" >&2; wrong=1; }

while IFS=' =' read -r name value; do
  case "$1 $name" in
    machine*|container\ net.core.somaxconn|container\ net.ipv4.*) ;;
    *) continue ;;  # the host's
  esac
  seen=$(sysctl -e -n "$name")
  [ "$seen" = "$value" ] || complain "$name is ${seen:-not there}, not $value"
done < /etc/sysctl.d/60-trainyard.conf

for package in unattended-upgrades needrestart; do
  case $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) in
    installed) complain "$package is installed: it restarts services under a running job" ;;
  esac
done
if [ "$1" = machine ]; then
  systemctl is-active --quiet chrony || complain "chrony, which keeps the clock, is $(systemctl is-active chrony)"
fi
exit $wrong
