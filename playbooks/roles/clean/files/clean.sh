#!/bin/sh
# Takes from this machine what must not be twice, as far as it is on the disk: clean.sh BASE
# What took its time stays: packages, virtual environments, bundles. Prints `changed`: there is always something.
set -eu
base=$1

# cloud-init may still be at its last stage; at a later boot it waits for the play, which is here.
if command -v cloud-init > /dev/null; then
  timeout 30 cloud-init status --wait > /dev/null 2>&1 || true
  cloud-init clean --logs
fi

# No daemon-reload: this play's own unit is to end as it began. User-data brings it anew.
rm -f /etc/systemd/system/trainyard-node.service /etc/systemd/system/*.wants/trainyard-node.service

# Not /opt/trainyard as a whole: scratch may be another disk.
for name in node.json boot.json manifest.json fetched.json refused play next current bundle.tar.gz wheels; do
  rm -rf "${base:?}/$name"
done

rm -f /etc/ssh/ssh_host_* /etc/hostname
rm -f /var/lib/systemd/random-seed /var/lib/systemd/credential.secret
rm -rf /var/lib/dhcp/* /var/lib/amazon/ssm/i-*  # leases; what the Session Manager's agent keeps for an instance
rm -f /root/.bash_history /home/*/.bash_history
rm -rf /root/.cache /var/tmp/*

apt-get clean
rm -rf /var/lib/apt/lists/*

# What is told from here on stays in memory.
journalctl --relinquish-var
rm -rf /var/log/journal/*
find /var/log -type f -exec truncate -s 0 {} +

# Empty, not absent: the next boot makes one, and does not take itself for the first of the distribution.
rm -f /var/lib/dbus/machine-id
truncate -s 0 /etc/machine-id
sync
echo changed
