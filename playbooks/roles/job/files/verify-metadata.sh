#!/bin/sh
# Verify that the user of the job cannot reach the instance metadata service, as a process and in the namespaces of a
# container, which has the network of the node: verify-metadata.sh PYTHON USER
probe='import socket; socket.create_connection(("169.254.169.254", 80), 5)'
if ! output=$("$1" -c "$probe" 2>&1); then
  echo "root does not reach the metadata service: $(echo "$output" | tail -n 1)" >&2
  exit 1
fi
for namespaces in "" "unshare --mount --pid --ipc --uts --fork"; do
  $namespaces true || exit 1
  if $namespaces setpriv --reuid "$2" --regid "$2" --clear-groups "$1" -c "$probe" 2>/dev/null; then
    echo "the user $2 reaches the metadata service${namespaces:+ in a container}: check 'nft list table inet trainyard'" >&2
    exit 1
  fi
done
