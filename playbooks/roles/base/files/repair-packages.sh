#!/bin/sh
# Repair packages whose installation was interrupted, for example by a power loss: apt refuses all work before that.
#   repair-packages.sh PACKAGE...
# Prints `changed` if it repaired any. Then prints each installed package among PACKAGE..., and
# `not held: NAME` for each installed kernel package (linux-*, the running kernel's included) that is not held.
set -eu
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

half_installed() {
  dpkg-query -W -f '${db:Status-Status} ${db:Status-Eflag} ${Package}\n' |
    sed -En '/^(installed|config-files|not-installed) ok /!s/.* //p' | xargs
}

# dpkg keeps the operations that it has not merged into its database in the folder `updates`.
is_interrupted() { [ -n "$(half_installed)" ] || [ -n "$(find /var/lib/dpkg/updates -type f)" ]; }

# A dpkg process that still runs looks the same, and holds the lock.
configure() {
  deadline=$(($(date +%s) + 600))
  until output=$(dpkg --configure -a --force-confdef --force-confold 2>&1 < /dev/null); do
    case $output in
      *' was locked by '*) [ "$(date +%s)" -lt "$deadline" ] || return 1 ;;
      *) return 1 ;;
    esac
    sleep 1
  done
}

# apt does not unpack a half-unpacked package again without --reinstall.
reinstall() {
  apt-get -q -o DPkg::Lock::Timeout=600 update > /dev/null 2>&1 || true
  # shellcheck disable=SC2046 # one argument per package
  output=$(apt-get -qy -o DPkg::Lock::Timeout=600 -o Dpkg::Options::=--force-confold --allow-change-held-packages \
    --reinstall install $(half_installed) 2>&1 < /dev/null)
}

if is_interrupted; then
  if configure && is_interrupted; then reinstall || true; fi
  if is_interrupted; then
    echo "Packages are half installed and cannot be repaired: $(half_installed). Repair or remove them, or use" \
      "another image. Last output: $(echo "$output" | tail -n 5)" >&2
    exit 1
  fi
  echo changed
fi
kernel=linux-image-$(uname -r)
dpkg-query -W -f '${db:Status-Status} ${db:Status-Want} ${Package}\n' "$kernel" "$@" 2>/dev/null |
  sed -n -e 's/^installed install \(linux-.*\)/not held: \1/p' -e 's/^installed [^ ]* //p'
exit 0
