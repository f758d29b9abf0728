"""Requirements of the nspawn backend on this machine, each with the package or setting that provides it."""

import os
import shutil
import sys
from pathlib import Path

from rehearsal.hypervisor.nspawn.image import PYTHON
from trainyard.errors import Problem

# inotify instances of one booted node (systemd, its services and cloud-init): 14 were counted.
INOTIFY_INSTANCES_PER_NODE = 16
INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
PRIVATE_FOLDERS = ("/tmp", "/var/tmp")  # noqa: S108
# Program -> Debian and Ubuntu package that provides it.
PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "journalctl": "systemd",
}


def missing_requirements() -> list[Problem]:
    """Return the unmet requirements for booting nodes on this machine; an empty list when all are met."""
    problems = []
    if os.geteuid() != 0:
        fix = "Run the rehearsal as root (sudo make rehearsal BACKEND=nspawn), or use BACKEND=process"
        reason = "only root can start systemd-nspawn containers and create network namespaces"
        problems.append(Problem("user id", str(os.geteuid()), reason, fix, "root_required"))
    if missing := sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None}):
        fix = f"On Debian or Ubuntu: apt-get install {' '.join(missing)}"
        reason = "the nspawn backend needs these packages"
        problems.append(Problem("packages", ", ".join(missing), reason, fix, "packages_missing"))
    if sys.base_prefix != "/usr" or sys.version_info[:2] != PYTHON:
        current = f"{sys.base_prefix}, Python {sys.version_info[0]}.{sys.version_info[1]}"
        reason = f"nodes share this environment, and Debian 12 has Python {PYTHON[0]}.{PYTHON[1]} in /usr"
        fix = "Create it again with the system's Python: make clean; rm -r .venv; make setup PYTHON=/usr/bin/python3.11"
        problems.append(Problem("virtual environment", current, reason, fix, "python_not_of_debian"))
    if any(Path(sys.prefix).is_relative_to(folder) for folder in PRIVATE_FOLDERS):
        reason = "nodes share this environment, and the unit of a job has its own /tmp and /var/tmp (PrivateTmp)"
        fix = "Move the project out of this folder, and run make setup again"
        problems.append(Problem("virtual environment", sys.prefix, reason, fix, "environment_in_tmp"))
    return problems


def check_inotify_limit(machines: int) -> list[Problem]:
    """Check that this number of machines can boot at once under the kernel's inotify limit, which is per user."""
    needed, limit = machines * INOTIFY_INSTANCES_PER_NODE, int(INOTIFY_LIMIT.read_text())
    if needed <= limit:
        return []
    reason = f"{machines} booted nodes use up to {needed} inotify instances"
    recommended = max(1024, 2 * needed)
    fix = f"Raise it: sysctl -w fs.inotify.max_user_instances={recommended}, or rehearse fewer nodes (--nodes)"
    return [Problem("fs.inotify.max_user_instances", str(limit), reason, fix, "inotify_limit_too_low")]
