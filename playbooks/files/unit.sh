#!/bin/sh
# Has a unit run: says `changed` where it had to be started.
#   unit.sh UNIT start|restart   restart: also where it runs, since its file is another one
set -eu
unit=$1
# Also where it runs on: its next start is by the file as it is now.
if [ "$2" = restart ] || [ "$(systemctl show --property NeedDaemonReload --value "$unit")" = yes ]; then
  systemctl daemon-reload
fi
if ! systemctl is-active --quiet "$unit"; then
  systemctl start "$unit"
  echo changed
elif [ "$2" = restart ]; then
  systemctl restart "$unit"
  echo changed
fi
