#!/bin/sh
# Enable a component, such as contrib, in the distribution's package sources. Prints `changed` for each changed file.
#   enable-component.sh COMPONENT
set -eu
component=$1
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
  [ -e "$file" ] || continue
  grep -Eq "^deb .* $suite(-updates|-security)? main" "$file" || continue
  before=$(cat "$file")
  sed -E -i "/^deb .* $suite(-updates|-security)? main/{/ $component( |\$)/!s/ main/ main $component/}" "$file"
  [ "$before" = "$(cat "$file")" ] || echo changed
done
for file in /etc/apt/sources.list.d/*.sources; do
  [ -e "$file" ] || continue
  grep -Eq "^Suites:.* $suite" "$file" || continue
  before=$(cat "$file")
  sed -E -i "/^Components:.* main/{/ $component( |\$)/!s/ main/ main $component/}" "$file"
  [ "$before" = "$(cat "$file")" ] || echo changed
done
