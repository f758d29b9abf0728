#!/bin/sh
# Remove the state on the disk that must be unique per machine. Keeps packages, virtual environments and bundles.
#   clean.sh BASE
# Prints `changed`: it always removes something.
set -eu
base=$1

# cloud-init may still run its final stage; at a later boot it waits for the node playbook, which runs this script.
if command -v cloud-init > /dev/null; then
  timeout 30 cloud-init status --wait > /dev/null 2>&1 || true
  cloud-init clean --logs
fi

# No daemon-reload: the running unit of this playbook must not change. User data writes the unit again.
rm -f /etc/systemd/system/trainyard-node.service /etc/systemd/system/*.wants/trainyard-node.service

# Not the whole directory: scratch may be another disk.
for name in node.json boot.json manifest.json fetched.json rejected playbook next current bundle.tar.gz wheels; do
  rm -rf "${base:?}/$name"
done

rm -f /etc/ssh/ssh_host_* /etc/hostname
rm -f /var/lib/systemd/random-seed /var/lib/systemd/credential.secret
rm -rf /var/lib/dhcp/* /var/lib/amazon/ssm/i-*  # DHCP leases; state of the SSM agent
rm -f /root/.bash_history /home/*/.bash_history
rm -rf /root/.cache /var/tmp/*

apt-get clean
rm -rf /var/lib/apt/lists/*

# From here on the journal is written to memory only.
journalctl --relinquish-var
rm -rf /var/log/journal/*
find /var/log -type f -exec truncate -s 0 {} +

# Empty, not missing: the next boot writes a new id, and systemd does not run its first-boot setup.
rm -f /var/lib/dbus/machine-id
truncate -s 0 /etc/machine-id
sync
echo changed
