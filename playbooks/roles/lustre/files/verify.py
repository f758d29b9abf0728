#!/usr/bin/python3
"""Looks whether the file system is mounted, takes a file and gives it back, and whether the client is tuned.

    verify.py MOUNT_POINT MOUNT_NAME SECONDS

A file system that is away lets whoever asks for it wait in the kernel, out of reach of signals: processes of their own
ask, and are left behind when time is over.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

PROBE = """\
import os, sys
path = os.path.join(sys.argv[1], f".trainyard-{os.uname().nodename}-{os.getpid()}")
text = os.urandom(1 << 20)
try:
    with open(path, "xb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    with open(path, "rb") as file:
        if file.read() != text:
            sys.exit("it gives back something else than was written")
except OSError as error:
    sys.exit(str(error))
finally:
    if os.path.exists(path):
        os.unlink(path)
"""
LOOK_EVERY = 3.0
HINT = "its name must resolve, and TCP 988 and 1018-1023 be open both ways between node and file system"
MODULES = Path("/sys/module")
MODULE_SETTINGS = Path("/etc/modprobe.d/60-trainyard-lustre.conf")
TUNING = "trainyard-lustre-tuning.service"
TUNING_STATE = "ActiveState,ExecMainExitTimestampMonotonic"
TUNING_SECONDS = 30.0


def source_of(mount_point: str, mounts: str) -> str:
    """What is mounted there, on top of the automount itself; empty for nothing. `mounts`: text of /proc/mounts."""
    found = [line.split()[:3] for line in mounts.splitlines()]
    sources = [source for source, where, kind in found if where == mount_point and kind != "autofs"]
    return sources[-1] if sources else ""


def probe(mount_point: str, seconds: float) -> str:
    """What is wrong with a file written, read back and removed; empty when nothing is."""
    command = [sys.executable, "-c", PROBE, mount_point]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        words = child.communicate(timeout=seconds)[1].strip()
    except subprocess.TimeoutExpired:
        child.kill()
        return f"no answer within {seconds:.0f} s"
    return (words.splitlines() or [f"status {child.returncode}"])[-1] if child.returncode else ""


def mount_problem(mount_point: str, name: str, seconds: float) -> str:
    """Empty when the file system is usable within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        problem = probe(mount_point, max(deadline - time.monotonic(), 1.0))
        source = source_of(mount_point, Path("/proc/mounts").read_text())
        # The kernel shows an address where the unit has a name.
        if not problem and source.endswith(f":/{name}"):
            return ""
        if not problem:
            return f"{mount_point} is {source or 'a folder of the root volume'}, not the file system {name}"
        if time.monotonic() + LOOK_EVERY > deadline:
            break
        time.sleep(LOOK_EVERY)
    if source:
        return f"{mount_point}, mounted from {source}, takes no file: {problem}"
    return f"{mount_point} can't be mounted: {problem}; {mounts_words(mount_point)}{HINT} (waited {seconds:.0f} s)"


def mounts_words(mount_point: str) -> str:
    """The last that mount itself has said."""
    unit = run("systemd-escape", "--path", "--suffix=mount", mount_point).strip()
    told = run("journalctl", "--unit", unit, "--lines=20", "--output=cat", "--quiet", "--boot").splitlines()
    words = [line for line in told if line.startswith(("mount", "lustre"))]
    return f"{unit} says: {words[-1]}; " if words else f"look at `journalctl -u {unit}`; "


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def module_problem(settings: Path = MODULE_SETTINGS, modules: Path = MODULES) -> str:
    """Empty when the loaded modules, if there are any, have the settings that were written for them."""
    text = settings.read_text() if settings.exists() else ""
    for module, name, value in re.findall(r"^options (\S+) (\S+)=(\S+)$", text, re.M):
        file = modules / module / "parameters" / name
        if file.exists() and (seen := file.read_text().strip()) != value:
            return f"the module {module} was loaded before its settings: {name} is {seen}, not {value}: reboot the node"
    return ""


def tuned_since(told: str, mounted: int) -> str:
    """`yes`, `no` (not yet) or `failed`: the tuning of the mount that began at `mounted`, in microseconds since boot.

    `told`: what `systemctl show` says of the service.
    """
    known = dict(line.split("=", 1) for line in told.splitlines() if "=" in line)
    if known.get("ActiveState") == "failed":
        return "failed"
    ended = int(known.get("ExecMainExitTimestampMonotonic") or 0)
    return "yes" if known.get("ActiveState") == "inactive" and ended >= mounted else "no"


def tuning_problem(mount_point: str) -> str:
    """Empty when the service that tunes a mount has tuned this one."""
    unit = run("systemd-escape", "--path", "--suffix=mount", mount_point).strip()
    deadline = time.monotonic() + TUNING_SECONDS
    while True:
        mounted = int(run("systemctl", "show", "--property=ActiveEnterTimestampMonotonic", "--value", unit) or 0)
        state = tuned_since(run("systemctl", "show", f"--property={TUNING_STATE}", TUNING), mounted)
        if state == "yes":
            return ""
        if state == "failed" or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    own = f"--identifier={Path(TUNING).stem}"
    told = run("journalctl", own, "--lines=5", "--output=cat", "--quiet", "--boot").strip()
    return f"{TUNING} has not tuned the mount: {told}"


def main(arguments: list[str]) -> int:
    mount_point, name, seconds = arguments
    problem = mount_problem(mount_point, name, float(seconds)) or module_problem() or tuning_problem(mount_point)
    if problem:
        print(problem, file=sys.stderr)
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
