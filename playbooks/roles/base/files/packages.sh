#!/bin/sh
# Has packages taken up where a run was cut within dpkg, as by a loss of power: apt refuses all work before. Says
# `changed` where there were any; then those of the named packages that are installed, and chrony.
set -eu
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

half() {
  dpkg-query -W -f '${db:Status-Status} ${db:Status-Eflag} ${Package}\n' |
    sed -En '/^(installed|config-files|not-installed) ok /!s/.* //p' | xargs
}

# What dpkg has done last, and not written down yet, lies in the folder.
cut() { [ -n "$(half)" ] || [ -n "$(find /var/lib/dpkg/updates -type f)" ]; }

# Another's work that goes on looks the same, and holds the lock.
configure() {
  end=$(($(date +%s) + 600))
  until told=$(dpkg --configure -a --force-confdef --force-confold 2>&1 < /dev/null); do
    case $told in
      *' was locked by '*) [ "$(date +%s)" -lt "$end" ] || return 1 ;;
      *) return 1 ;;
    esac
    sleep 1
  done
}

# What was cut as it was unpacked: apt leaves it so, unless it is told to install it again.
unpack() {
  apt-get -q -o DPkg::Lock::Timeout=600 update > /dev/null 2>&1 || true
  # shellcheck disable=SC2046 # one word a package
  told=$(apt-get -qy -o DPkg::Lock::Timeout=600 -o Dpkg::Options::=--force-confold --allow-change-held-packages \
    --reinstall install $(half) 2>&1 < /dev/null)
}

if cut; then
  if configure && cut; then unpack || true; fi
  if cut; then
    echo "Packages are half installed, and can't be taken up: $(half). Mend or remove them, or take another image." \
      "The last words: $(echo "$told" | tail -n 5)" >&2
    exit 1
  fi
  echo changed
fi
dpkg-query -W -f '${db:Status-Status} ${Package}\n' chrony "$@" 2>/dev/null | sed -n 's/^installed //p'
exit 0
