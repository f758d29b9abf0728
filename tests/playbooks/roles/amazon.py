"""Stand-ins for AWS's software and devices: their programs implement the calls of the roles."""

import os
import tarfile
from pathlib import Path

from tests.apt_repository import Package

KERNEL = os.uname().release
# The EFA installer, as far as the role depends on it; the plugin is a renamed library of the machine.
INSTALLER = """\
#!/bin/sh
set -eu
. ./env.sh
echo "$@" >> /var/log/installer-runs
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
# Lists the number of devices in the first line of /etc/efa-devices, each with two fabrics, like libfabric 2; the next
# call uses the second line.
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

# The programs that list and change the disks of the instance store, whose state is /etc/store.json.
STORE = """\
#!/usr/bin/python3
import json, os, sys
NAME, ARGUMENTS, FILE = os.path.basename(sys.argv[0]), sys.argv[1:], "/etc/store.json"
state = json.load(open(FILE))  # disks: path -> signature or null; array: its signature or null, absent without one
SIZE = 8 << 20

def save():
    json.dump(state, open(FILE, "w"))
    print(NAME, *ARGUMENTS, file=open("/var/log/store", "a"))

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
    signature = state.get("array") if ARGUMENTS[-1] == "/dev/md127" else state["disks"][ARGUMENTS[-1]]
    print(json.dumps({"signatures": [dict(zip(("type", "label"), signature))] if signature else []}))
elif NAME == "mdadm":
    if "--create" in ARGUMENTS:
        for path in state["disks"]:
            state["disks"][path] = ["linux_raid_member", "trainyard"]
    state["array"] = state.get("array_on_disks") if "--assemble" in ARGUMENTS else None
    save()
elif NAME == "mkfs.xfs":
    state["array"] = ["xfs", "trainyard"]
    save()
elif NAME == "mount":
    if ARGUMENTS[:2] == ["-t", "xfs"]:
        device, mount_point = ARGUMENTS[-2:]
        ARGUMENTS = ["-t", "tmpfs", "-o", f"noatime,size={2 * SIZE}", device.replace("/", ":"), mount_point]
    os.execv("/usr/bin/mount", ["mount", *ARGUMENTS])
"""
# Mounts fail while /etc/fsx-failures has lines: each attempt removes a line.
MOUNT = """\
#!/bin/sh
echo "$@" >> /var/log/mounts
if [ -s /etc/fsx-failures ]; then
  sed -i 1d /etc/fsx-failures
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
    """Create the archive of the EFA installer in a served folder, and return its path."""
    tree = folder / version / "aws-efa-installer"
    tree.mkdir(parents=True)
    for name, text in [("efa_installer.sh", INSTALLER), ("fi_info", FI_INFO)]:
        (tree / name).write_text(text)
        (tree / name).chmod(0o755)
    (tree / "env.sh").write_text(f"EFA_INSTALLER_VERSION={version}\n")
    archive_path = folder / f"aws-efa-installer-{version}.tar.gz"
    with tarfile.open(archive_path, "w:gz") as archive:
        archive.add(tree, "aws-efa-installer")
    return archive_path
