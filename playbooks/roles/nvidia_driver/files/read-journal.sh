#!/bin/sh
# Print the last five log lines of a systemd unit: read-journal.sh UNIT
journalctl --unit "$1" --lines 5 --output cat --no-pager
