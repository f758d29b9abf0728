"""AWS's software and devices as machines without them have them: what the roles ask of the real ones, these answer."""

import os
import tarfile
from pathlib import Path

from tests.apt_repository import Package

KERNEL = os.uname().release
# What EFA's installer does as far as the role builds on it; the plugin is a library of this machine, renamed.
INSTALLER = """\
#!/bin/sh
set -eu
. ./env.sh
echo "$@" >> /var/log/ran
test "$DEBIAN_FRONTEND" = noninteractive
mkdir -p /opt/amazon/efa/bin /opt/amazon/ofi-nccl/lib
cp fi_info /opt/amazon/efa/bin/
cp /usr/lib/x86_64-linux-gnu/liburcu-common.so.8 /opt/amazon/ofi-nccl/lib/libnccl-net.so
sed -i 's/liburcu-common.so.8/libnccl-net-ofi.so\\x00/' /opt/amazon/ofi-nccl/lib/libnccl-net.so
printf '# EFA installer version: %s\\n# Debug packages installed: no\\n# Packages installed:\\nefa_3\\n' \\
  "$EFA_INSTALLER_VERSION" > /opt/amazon/efa_installed_packages
[ -e /etc/efa-used ] && echo '- Please reboot to complete the installation.'
echo '- Please logout/login to complete the installation.'
"""
# As many devices as the first line of /etc/efa-devices says, each under two fabrics, as libfabric 2 lists them; the
# next time as many as the second line says.
FI_INFO = """\
#!/bin/sh
count=$(head -n 1 /etc/efa-devices)
sed -i '1{$!d}' /etc/efa-devices
for number in $(seq "$count"); do
  for fabric in efa efa-direct; do
    printf 'provider: efa\\n    fabric: %s\\n    domain: rdmap%ss0-rdm\\n    type: FI_EP_RDM\\n' "$fabric" "$number"
  done
done
"""

# Disks of the instance store, and what tells of them and changes them: /etc/store.json is their state.
STORE = """\
#!/usr/bin/python3
import json, os, sys
NAME, WORDS, FILE = os.path.basename(sys.argv[0]), sys.argv[1:], "/etc/store.json"
state = json.load(open(FILE))  # disks: path -> signature or null; array: its signature or null, absent without one
SIZE = 8 << 20

def keep():
    json.dump(state, open(FILE, "w"))
    print(NAME, *WORDS, file=open("/var/log/store", "a"))

def mounted(path):
    lines = [line.split() for line in open("/proc/mounts")]
    return [line[1] for line in lines if line[0] == path.replace("/", ":")] or [None]

if NAME == "lsblk":
    devices = []
    for path in state["disks"]:
        item = {"name": path, "type": "disk", "model": "Amazon EC2 NVMe Instance Storage", "size": SIZE,
                "mountpoints": mounted(path)}
        if "array" in state:
            item["children"] = [{"name": "/dev/md127", "type": "raid0", "model": None, "size": 2 * SIZE,
                                 "mountpoints": mounted("/dev/md127")}]
        devices.append(item)
    print(json.dumps({"blockdevices": devices}))
elif NAME == "wipefs":
    seen = state.get("array") if WORDS[-1] == "/dev/md127" else state["disks"][WORDS[-1]]
    print(json.dumps({"signatures": [dict(zip(("type", "label"), seen))] if seen else []}))
elif NAME == "mdadm":
    if "--create" in WORDS:
        for path in state["disks"]:
            state["disks"][path] = ["linux_raid_member", "trainyard"]
    state["array"] = state.get("kept") if "--assemble" in WORDS else None
    keep()
elif NAME == "mkfs.xfs":
    state["array"] = ["xfs", "trainyard"]
    keep()
elif NAME == "mount":
    if WORDS[:2] == ["-t", "xfs"]:
        device, where = WORDS[-2:]
        WORDS = ["-t", "tmpfs", "-o", f"noatime,size={2 * SIZE}", device.replace("/", ":"), where]
    os.execv("/usr/bin/mount", ["mount", *WORDS])
"""
# Away as long as /etc/fsx-away has lines: each try takes one.
MOUNT = """\
#!/bin/sh
echo "$@" >> /var/log/mounts
if [ -s /etc/fsx-away ]; then
  sed -i 1d /etc/fsx-away
  echo "mount.lustre: mount $1 at $2 failed: Connection timed out" >&2
  exit 110
fi
exec mount -t tmpfs -o "size=4m$(cat /etc/fsx-options 2>/dev/null)" "$1" "$2"
"""
LUSTRE_CLIENT = (
    Package(
        name=f"lustre-client-modules-{KERNEL}",
        depends=["lustre-client-utils"],
        scripts={"postinst": "#!/bin/sh\ncat /etc/modprobe.d/60-trainyard-lustre.conf > /var/log/loaded || true\n"},
    ),
    Package(
        name="lustre-client-utils",
        files={"/sbin/mount.lustre": MOUNT, "/usr/sbin/lctl": '#!/bin/sh\necho "$@" >> /var/log/lctl\n'},
    ),
)


def efa_installer(folder: Path, version: str) -> Path:
    """The archive of EFA's installer, in a folder that is served."""
    tree = folder / version / "aws-efa-installer"
    tree.mkdir(parents=True)
    for name, text in [("efa_installer.sh", INSTALLER), ("fi_info", FI_INFO)]:
        (tree / name).write_text(text)
        (tree / name).chmod(0o755)
    (tree / "env.sh").write_text(f"EFA_INSTALLER_VERSION={version}\n")
    made = folder / f"aws-efa-installer-{version}.tar.gz"
    with tarfile.open(made, "w:gz") as archive:
        archive.add(tree, "aws-efa-installer")
    return made
