#!/bin/sh
# Looks at the system itself, not at what was written for it; says each thing that is not as it should be.
#   verify.sh container|machine NOFILE SHM_PERCENT HUGE_PAGES TIME_SERVER 'UNWANTED...' 'HELD...'
set -eu
kind=$1 nofile=$2 shm=$3 huge_pages=$4 time_server=$5 unwanted=$6 held="$7 linux-image-$(uname -r)"
wrong=0

complain() { echo "$*" >&2; wrong=1; }

while IFS=' =' read -r name value; do
  case "$kind $name" in
    machine*|container\ net.core.somaxconn|container\ net.ipv4.*) ;;
    *) continue ;;  # the host's
  esac
  seen=$(sysctl -e -n "$name" | xargs)  # several values have tabs between them
  [ "$seen" = "$(echo "$value" | xargs)" ] || complain "$name is ${seen:-not there}, not $value"
done < /etc/sysctl.d/60-trainyard.conf

# limit WHO NAME SEEN WANTED ROW: ROW is its line in /proc/1/limits. A container's host may refuse more than process 1 has.
limit() {
  if [ "$kind" = container ]; then
    most=$(sed -n "s/^$5  *[^ ]*  *\([^ ]*\).*/\1/p" /proc/1/limits)
    case $most in
      unlimited) ;;
      *) [ "$4" != unlimited ] && [ "$4" -le "$most" ] || return 0 ;;
    esac
  fi
  [ "$3" = "$4" ] || complain "$1 gets a limit of $3 $2, not $4"
}

limits() {
  limit "$1" 'open files' "$2" "$nofile" 'Max open files'
  limit "$1" 'KiB of locked memory' "$3" unlimited 'Max locked memory'
}

# shellcheck disable=SC2046 # two words
{
  limits 'a service' $(systemd-run --quiet --wait --pipe /bin/sh -c 'ulimit -n; ulimit -l')
  for user in root nobody; do
    limits "a session of $user" $(runuser "$user" -s /bin/sh -c 'ulimit -n; ulimit -l')
  done
}

wanted=$(awk -v percent="$shm" '/^MemTotal/ {printf "%d", $2 * percent / 100}' /proc/meminfo)
have=$(df --output=size /dev/shm | tail -1 | xargs)
[ "$have" -ge $((wanted - 8)) ] && [ "$have" -le $((wanted + 8)) ] ||
  complain "/dev/shm has $have KiB, not $wanted ($shm % of memory)"

if [ "$kind" = machine ]; then
  pages=/sys/kernel/mm/transparent_hugepage/enabled
  if [ -e $pages ] && ! grep -qF '[madvise]' $pages; then
    complain "transparent huge pages are $(sed 's/.*\[\(.*\)\].*/\1/' $pages), not madvise"
  fi
  have=$(cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages 2>/dev/null || echo 0)
  [ "$have" -ge "$huge_pages" ] ||
    complain "$have huge pages are reserved, not $huge_pages: memory that long has been in use has no whole ones, reboot"
fi

# shellcheck disable=SC2086 # one word a package
states=$(dpkg-query -W -f '${db:Status-Status} ${db:Status-Want} ${Package}\n' $unwanted $held 2>/dev/null || true)
for package in $unwanted; do
  ! echo "$states" | grep -q "^installed [^ ]* $package\$" ||
    complain "$package is installed: it restarts services under a running job"
done
for package in $held; do
  ! echo "$states" | grep "^installed [^ ]* $package\$" | grep -qv ' hold ' ||
    complain "$package is not held: an upgrade takes the kernel away that drivers are built for"
done
periodic=$(apt-config shell enabled APT::Periodic::Enable)
[ "$periodic" = "enabled='0'" ] || complain "apt upgrades by itself: APT::Periodic::Enable is ${periodic#enabled=}"

if systemctl is-active --quiet chrony.service; then
  sources=$(chronyc -c -n sources | cut -d , -f 3 | xargs)
  case " $sources " in
    *" $time_server "*) ;;
    *) complain "chrony has the sources '$sources', not $time_server: /etc/chrony/chrony.conf needs the line" \
      "'sourcedir /etc/chrony/sources.d'" ;;
  esac
elif [ "$kind" = machine ]; then
  complain "chrony, which keeps the clock, is $(systemctl is-active chrony.service || true)"
fi
exit $wrong
