#!/bin/sh
# Print the installed container software as JSON. Changes nothing.
set -u
succeeds() { if "$@" >/dev/null 2>&1; then echo true; else echo false; fi; }
toolkit=$(nvidia-ctk --version 2>/dev/null | sed -n 's/.*version \([0-9.]*\).*/\1/p' | head -1)
printf '{"docker": %s, "toolkit": "%s", "ecr": %s}\n' "$(succeeds command -v dockerd)" "$toolkit" \
  "$(succeeds command -v docker-credential-ecr-login)"
