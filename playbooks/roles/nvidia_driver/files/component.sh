#!/bin/sh
# Has the distribution's own sources bring a further component. Says `changed` where they did not.
#   component.sh COMPONENT
set -eu
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [ -e "$file" ] || continue
  grep -Eq "^deb .* $suite(-updates|-security)? main" "$file" || continue
  before=$(cat "$file")
  sed -E -i "/^deb .* $suite(-updates|-security)? main/{/ $1( |\$)/!s/ main/ main $1/}" "$file"
  [ "$before" = "$(cat "$file")" ] || echo changed
done
for file in /etc/apt/sources.list.d/*.sources; do
  [ -e "$file" ] || continue
  grep -Eq "^Suites:.* $suite" "$file" || continue
  before=$(cat "$file")
  sed -E -i "/^Components:.* main/{/ $1( |\$)/!s/ main/ main $1/}" "$file"
  [ "$before" = "$(cat "$file")" ] || echo changed
done
