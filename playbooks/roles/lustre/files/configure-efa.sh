#!/bin/sh
# Configure the node's EFA interfaces for the Lustre client with AWS's setup script, which also creates a service that
# configures them at each boot. FSx for Lustre guide, "Configuring EFA clients". Prints `changed` if anything was changed.
#   configure-efa.sh URL [FOLDER]
set -eu
url=$1 folder=${2:-/usr/local/lib/trainyard-lustre-efa}
service=configure-efa-fsx-lustre-client.service

is_configured() { lnetctl net show --net efa 2>/dev/null | grep -q '@efa'; }

if systemctl is-enabled --quiet "$service" 2>/dev/null && is_configured; then exit 0; fi
mkdir -p "$folder"
curl --fail --silent --show-error --location --retry 5 --output "$folder/client.zip" "$url"
python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' "$folder/client.zip" "$folder"
cd "$folder/configure-efa-fsx-lustre-client"
chmod +x ./*.sh
# The kernel reads the CPU partitions, which the script sets, only when it loads the modules.
if [ -e /sys/module/lnet ]; then lustre_rmmod >&2; fi
./setup.sh >&2
is_configured || { echo "AWS's setup script has configured no EFA interface for Lustre: check lnetctl net show" >&2; exit 1; }
echo changed
