#!/bin/sh
# Has a unit run: says `changed` where it had to be started.
#   unit.sh UNIT start|restart   restart: also where it runs, since its file is another one
set -eu
unit=$1
[ "$2" = start ] || systemctl daemon-reload
if ! systemctl is-active --quiet "$unit"; then
  systemctl daemon-reload
  systemctl start "$unit"
  echo changed
elif [ "$2" = restart ]; then
  systemctl restart "$unit"
  echo changed
fi
