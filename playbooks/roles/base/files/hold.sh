#!/bin/sh
# Holds those of the named packages that are installed, and the running kernel's. Says `changed` where one was not held.
set -eu
installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" "linux-image-$(uname -r)" 2>/dev/null |
  sed -n 's/^installed //p')
[ -n "$installed" ] || exit 0
# shellcheck disable=SC2086 # one word a package
apt-mark hold $installed | grep -v already && echo changed || true
