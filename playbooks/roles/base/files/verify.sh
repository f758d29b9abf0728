#!/bin/sh
# Verify the running system, not the files that configure it. Prints one line per problem to stderr; exit status 0 or 1.
#   verify.sh container|machine NOFILE SHM_PERCENT HUGE_PAGES TIME_SERVER 'REMOVED_PACKAGE...' 'HELD_PACKAGE...'
set -eu
kind=$1 nofile=$2 shm_percent=$3 huge_pages=$4 time_server=$5 removed=$6 held="$7 linux-image-$(uname -r)"
status=0

report_problem() { echo "$*" >&2; status=1; }

while IFS=' =' read -r name expected; do
  case "$kind $name" in
    machine*|container\ net.core.somaxconn|container\ net.ipv4.*) ;;
    *) continue ;;  # a setting of the container's host
  esac
  value=$(sysctl -e -n "$name" | xargs)  # several values have tabs between them
  [ "$value" = "$(echo "$expected" | xargs)" ] || report_problem "$name is ${value:-not set}, not $expected"
done < /etc/sysctl.d/60-trainyard.conf

# check_limit SUBJECT NAME VALUE EXPECTED ROW
# ROW names the line in /proc/1/limits: a container's host may refuse more than process 1 has.
check_limit() {
  if [ "$kind" = container ]; then
    maximum=$(sed -n "s/^$5  *[^ ]*  *\([^ ]*\).*/\1/p" /proc/1/limits)
    case $maximum in
      unlimited) ;;
      *) [ "$4" != unlimited ] && [ "$4" -le "$maximum" ] || return 0 ;;
    esac
  fi
  [ "$3" = "$4" ] || report_problem "$1 has a limit of $3 $2, not $4"
}

check_limits() {
  check_limit "$1" 'open files' "$2" "$nofile" 'Max open files'
  check_limit "$1" 'KiB of locked memory' "$3" unlimited 'Max locked memory'
}

# shellcheck disable=SC2046 # two arguments
{
  check_limits 'a service' $(systemd-run --quiet --wait --pipe /bin/sh -c 'ulimit -n; ulimit -l')
  for user in root nobody; do
    check_limits "a session of $user" $(runuser "$user" -s /bin/sh -c 'ulimit -n; ulimit -l')
  done
}

expected_kib=$(awk -v percent="$shm_percent" '/^MemTotal/ {printf "%d", $2 * percent / 100}' /proc/meminfo)
size_kib=$(df --output=size /dev/shm | tail -1 | xargs)
[ "$size_kib" -ge $((expected_kib - 8)) ] && [ "$size_kib" -le $((expected_kib + 8)) ] ||
  report_problem "/dev/shm has $size_kib KiB, not $expected_kib ($shm_percent % of memory)"

if [ "$kind" = machine ]; then
  enabled=/sys/kernel/mm/transparent_hugepage/enabled
  if [ -e $enabled ] && ! grep -qF '[madvise]' $enabled; then
    report_problem "transparent huge pages are $(sed 's/.*\[\(.*\)\].*/\1/' $enabled), not madvise"
  fi
  reserved=$(cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages 2>/dev/null || echo 0)
  [ "$reserved" -ge "$huge_pages" ] ||
    report_problem "$reserved huge pages are reserved, not $huge_pages: fragmented memory has no free 2 MiB pages," \
      "reboot the node"
fi

# shellcheck disable=SC2086 # one argument per package
states=$(dpkg-query -W -f '${db:Status-Status} ${db:Status-Want} ${Package}\n' $removed $held 2>/dev/null || true)
for package in $removed; do
  ! echo "$states" | grep -q "^installed [^ ]* $package\$" ||
    report_problem "$package is installed: it restarts services during a job"
done
for package in $held; do
  ! echo "$states" | grep "^installed [^ ]* $package\$" | grep -qv ' hold ' ||
    report_problem "$package is not held: an upgrade removes the kernel that the drivers are built for"
done
periodic=$(apt-config shell enabled APT::Periodic::Enable)
[ "$periodic" = "enabled='0'" ] ||
  report_problem "automatic upgrades are on: APT::Periodic::Enable is ${periodic#enabled=}"

if systemctl is-active --quiet chrony.service; then
  sources=$(chronyc -c -n sources | cut -d , -f 3 | xargs)
  case " $sources " in
    *" $time_server "*) ;;
    *) report_problem "chrony has the sources '$sources', not $time_server: /etc/chrony/chrony.conf needs the line" \
      "'sourcedir /etc/chrony/sources.d'" ;;
  esac
elif [ "$kind" = machine ]; then
  report_problem "chrony, which synchronizes the clock, is $(systemctl is-active chrony.service || true)"
fi
exit $status
