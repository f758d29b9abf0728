#!/usr/bin/python3
"""Verify that the file system is mounted and writable, that the client is tuned, and that a file has been imported.

    verify.py MOUNT_POINT MOUNT_NAME TIMEOUT_SECONDS [IMPORTED_FILE]

An unavailable file system blocks each access in the kernel, where no signal arrives: separate processes access it, and
are abandoned at the timeout. Prints the first problem to stderr; exit status 0 or 1.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

PROBE = """\
import os, sys
path = os.path.join(sys.argv[1], f".trainyard-{os.uname().nodename}-{os.getpid()}")
content = os.urandom(1 << 20)
try:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    with open(path, "rb") as file:
        if file.read() != content:
            sys.exit("the content read differs from the content written")
except OSError as error:
    sys.exit(str(error))
finally:
    if os.path.exists(path):
        os.unlink(path)
"""
POLL_SECONDS = 3.0
HINT = "its name must resolve, and TCP 988 and 1018-1023 must be open both ways between node and file system"
MODULES = Path("/sys/module")
MODULE_SETTINGS = Path("/etc/modprobe.d/60-trainyard-lustre.conf")
TUNING_UNIT = "trainyard-lustre-tuning.service"
TUNING_PROPERTIES = "ActiveState,ExecMainExitTimestampMonotonic"
TUNING_TIMEOUT_SECONDS = 30.0


def mounted_source(mount_point: str, mounts: str) -> str:
    """Return the source mounted on top of the automount; empty if none is. `mounts`: text of /proc/mounts."""
    entries = [line.split()[:3] for line in mounts.splitlines()]
    sources = [source for source, directory, kind in entries if directory == mount_point and kind != "autofs"]
    return sources[-1] if sources else ""


def probe_problem(mount_point: str, timeout_seconds: float) -> str:
    """Return why no file can be written, read and removed before the timeout; empty if it can."""
    command = [sys.executable, "-c", PROBE, mount_point]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output = process.communicate(timeout=timeout_seconds)[1].strip()
    except subprocess.TimeoutExpired:
        process.kill()
        return f"no response within {timeout_seconds:.0f} s"
    return (output.splitlines() or [f"exit status {process.returncode}"])[-1] if process.returncode else ""


def mount_problem(mount_point: str, name: str, timeout_seconds: float) -> str:
    """Return why the file system is not usable before the timeout; empty if it is."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        problem = probe_problem(mount_point, max(deadline - time.monotonic(), 1.0))
        source = mounted_source(mount_point, Path("/proc/mounts").read_text())
        # The kernel reports an address where the unit has a DNS name.
        if not problem and source.endswith(f":/{name}"):
            return ""
        if not problem:
            return f"{mount_point} is {source or 'a directory of the root volume'}, not the file system {name}"
        if time.monotonic() + POLL_SECONDS > deadline:
            break
        time.sleep(POLL_SECONDS)
    if source:
        return f"{mount_point}, mounted from {source}, is not writable: {problem}"
    log = last_mount_log(mount_point)
    return f"{mount_point} cannot be mounted: {problem}; {log}{HINT} (waited {timeout_seconds:.0f} s)"


def import_problem(file: str, timeout_seconds: float) -> str:
    """Return why the file does not exist before the timeout; empty if it does. FSx imports objects asynchronously."""
    deadline = time.monotonic() + timeout_seconds
    while not Path(file).exists():
        if time.monotonic() + POLL_SECONDS > deadline:
            return (
                f"FSx has not imported {file} within {timeout_seconds:.0f} s: check the data repository association of "
                "the file system and the object in the data bucket, or set job.data to s3"
            )
        time.sleep(POLL_SECONDS)
    return ""


def last_mount_log(mount_point: str) -> str:
    """Return the last log line of the mount command, or the command that displays the log."""
    unit = mount_unit(mount_point)
    lines = run("journalctl", "--unit", unit, "--lines=20", "--output=cat", "--quiet", "--boot").splitlines()
    messages = [line for line in lines if line.startswith(("mount", "lustre"))]
    return f"{unit}: {messages[-1]}; " if messages else f"check `journalctl -u {unit}`; "


def mount_unit(mount_point: str) -> str:
    """Return the name of the systemd unit that mounts at this path."""
    return run("systemd-escape", "--path", "--suffix=mount", mount_point).strip()


def run(*command: str) -> str:
    """Return the standard output of a command, also if it fails."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def module_problem(settings: Path = MODULE_SETTINGS, modules: Path = MODULES) -> str:
    """Return which loaded module has other parameters than its settings file; empty if none has."""
    text = settings.read_text() if settings.exists() else ""
    for module, name, expected in re.findall(r"^options (\S+) (\S+)=(\S+)$", text, re.M):
        file = modules / module / "parameters" / name
        if file.exists() and (value := file.read_text().strip()) != expected:
            return (
                f"the module {module} was loaded before its parameters were set: {name} is {value}, not {expected}: "
                "reboot the node"
            )
    return ""


def tuning_state(properties: str, mounted_at: int) -> str:
    """Return `done`, `pending` or `failed`: the tuning of the mount that started at `mounted_at` (us since boot).

    `properties`: output of `systemctl show` for the service.
    """
    values = dict(line.split("=", 1) for line in properties.splitlines() if "=" in line)
    if values.get("ActiveState") == "failed":
        return "failed"
    exited_at = int(values.get("ExecMainExitTimestampMonotonic") or 0)
    return "done" if values.get("ActiveState") == "inactive" and exited_at >= mounted_at else "pending"


def tuning_problem(mount_point: str) -> str:
    """Return why the tuning service has not run for the current mount; empty if it has."""
    unit = mount_unit(mount_point)
    deadline = time.monotonic() + TUNING_TIMEOUT_SECONDS
    while True:
        mounted_at = int(run("systemctl", "show", "--property=ActiveEnterTimestampMonotonic", "--value", unit) or 0)
        state = tuning_state(run("systemctl", "show", f"--property={TUNING_PROPERTIES}", TUNING_UNIT), mounted_at)
        if state == "done":
            return ""
        if state == "failed" or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    identifier = f"--identifier={Path(TUNING_UNIT).stem}"
    log = run("journalctl", identifier, "--lines=5", "--output=cat", "--quiet", "--boot").strip()
    return f"{TUNING_UNIT} has not tuned the mount: {log}"


def main(arguments: list[str]) -> int:
    """Print the first problem, and return the exit status."""
    mount_point, name, timeout_seconds, *imported_files = arguments
    problem = mount_problem(mount_point, name, float(timeout_seconds)) or module_problem()
    problem = problem or tuning_problem(mount_point)
    for file in imported_files:
        problem = problem or import_problem(file, float(timeout_seconds))
    if problem:
        print(problem, file=sys.stderr)
    return int(bool(problem))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
