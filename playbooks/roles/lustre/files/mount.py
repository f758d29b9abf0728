#!/usr/bin/python3
"""Has systemd mount the file system when it is first used, and tune each mount. Says `changed` where it had not.

    mount.py DNS_NAME MOUNT_NAME MOUNT_POINT OPTIONS SECONDS

Units of our own, no line of fstab: how often and how long systemd tries can be said, and no other's file is edited.
What is there is looked at and mended, however an earlier play has ended.
"""

import os
import subprocess
import sys
from pathlib import Path

UNITS = Path("/etc/systemd/system")
SETTINGS = Path("/usr/local/sbin/trainyard-lustre-tuning")
TUNING = "trainyard-lustre-tuning.service"

MOUNT = """\
[Unit]
Description=FSx for Lustre
Wants=network-online.target
After=network-online.target
# Who comes later tries again: a file system that was away for a while is there the next time.
StartLimitIntervalSec=0

[Mount]
What={dns_name}@tcp:/{name}
Where={where}
Type=lustre
Options={options}
TimeoutSec={seconds}
"""
AUTOMOUNT = """\
[Unit]
Description=FSx for Lustre, when first used

[Automount]
Where={where}

[Install]
WantedBy=multi-user.target
"""
# It does not stay active: every mount starts it anew.
TUNE_EACH = """\
[Unit]
Description=Settings of the Lustre client, which each mount begins without
# Not after a try in vain: it would still run when the next one succeeds, and not be started again for that.
Requires={unit}.mount
After={unit}.mount
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={settings}

[Install]
WantedBy={unit}.mount
"""
TUNE = """\
#!/bin/sh
# By the FSx for Lustre guide, "Performance tips": for more than 64 GiB of memory, and for more than 64 vCPUs.
set -eu
processors=$(nproc --all)
kib=$(sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)
if [ "$kib" -gt $((64 * 1024 * 1024)) ]; then
  lctl set_param 'ldlm.namespaces.*.lru_max_age=600000' "ldlm.namespaces.*.lru_size=$((100 * processors))"
fi
if [ "$processors" -gt 64 ]; then
  # Of those of mdc the second has to stay below the first.
  lctl set_param 'osc.*OST*.max_rpcs_in_flight=32' 'mdc.*.max_rpcs_in_flight=64'
  lctl set_param 'mdc.*.max_mod_rpcs_in_flight=50'
fi
"""


def files(unit: str, dns_name: str, name: str, mount_point: str, options: str, seconds: str) -> dict[Path, str]:
    """Text of each file. `unit`: name of the mount's unit, without its suffix."""
    told = {
        "dns_name": dns_name,
        "name": name,
        "where": mount_point.replace("%", "%%"),
        "options": options,
        "seconds": seconds,
        "unit": unit.replace("%", "%%"),
        "settings": SETTINGS,
    }
    texts = {f"{unit}.mount": MOUNT, f"{unit}.automount": AUTOMOUNT, TUNING: TUNE_EACH}
    return {UNITS / file: text.format(**told) for file, text in texts.items()} | {SETTINGS: TUNE}


def written(file: Path, text: str) -> bool:
    """Whether it had to be written."""
    mode = 0o755 if file == SETTINGS else 0o644
    if file.exists() and file.read_text() == text and file.stat().st_mode & 0o777 == mode:
        return False
    beside = file.with_name(f".{file.name}.new")
    beside.write_text(text)
    beside.chmod(mode)
    beside.replace(file)
    return True


def systemctl(*words: str) -> str:
    """Its stdout. Ends the script with the words of a failure."""
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"systemctl {' '.join(words)}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def is_so(question: str, unit: str) -> bool:
    """`question`: is-active or is-enabled."""
    return subprocess.run(["systemctl", question, "--quiet", unit], capture_output=True, check=False).returncode == 0


def other(mount_point: str, name: str, mounts: str) -> bool:
    """Whether another file system is mounted there. `mounts`: text of /proc/mounts."""
    found = [line.split()[:3] for line in mounts.splitlines()]
    sources = [source for source, where, kind in found if where == mount_point and kind != "autofs"]
    # The kernel shows an address where the unit has a name.
    return any(not source.endswith(f":/{name}") for source in sources)


def main(dns_name: str, name: str, mount_point: str, options: str, seconds: str) -> None:
    mount_point = os.path.normpath(mount_point)
    told = subprocess.run(["systemd-escape", "--path", mount_point], capture_output=True, text=True, check=True)
    unit = told.stdout.strip()
    automount, mount = f"{unit}.automount", f"{unit}.mount"
    made = files(unit, dns_name, name, mount_point, options, seconds)
    changed = [written(file, text) for file, text in made.items()]
    if "yes" in systemctl("show", "--property=NeedDaemonReload", automount, mount, TUNING) or any(changed):
        systemctl("daemon-reload")
        changed.append(True)
    for one in (automount, TUNING):
        if not is_so("is-enabled", one):
            systemctl("enable", one)
            changed.append(True)
    if other(mount_point, name, Path("/proc/mounts").read_text()):
        systemctl("stop", mount)  # who uses it is told by the failure
        changed.append(True)
    if not is_so("is-active", automount):
        subprocess.run(["systemctl", "reset-failed", automount, mount], capture_output=True, check=False)
        systemctl("start", automount)
        changed.append(True)
    if any(changed):
        print("changed")


if __name__ == "__main__":
    main(*sys.argv[1:])
