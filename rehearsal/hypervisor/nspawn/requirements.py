"""What booted nodes need of this machine, each with what to install."""

import os
import shutil
import sys
from pathlib import Path

from rehearsal.hypervisor.nspawn.image import PYTHON
from trainyard.base import Problem

# What the systemd of a booted node, its services and cloud-init hold of it: 14 were counted.
INOTIFY_EACH = 16
INOTIFY_LIMIT = Path("/proc/sys/fs/inotify/max_user_instances")
# Program -> Debian's and Ubuntu's package that brings it.
PROGRAMS = {
    "systemd-nspawn": "systemd-container",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "journalctl": "systemd",
}


def lacking() -> list[Problem]:
    """All that stands in the way of booting nodes here; none on a machine that can."""
    problems = []
    if os.geteuid() != 0:
        fix = "Run it as root (sudo make rehearsal BACKEND=nspawn), or take BACKEND=process"
        why = "machines and network namespaces are root's to make"
        problems.append(Problem(key="the user", value=str(os.geteuid()), why=why, fix=fix))
    if missing := sorted({package for program, package in PROGRAMS.items() if shutil.which(program) is None}):
        fix = f"Debian, Ubuntu: apt-get install {' '.join(missing)}"
        why = "booted nodes are made with these"
        problems.append(Problem(key="programs", value=", ".join(missing), why=why, fix=fix))
    if sys.base_prefix != "/usr" or sys.version_info[:2] != PYTHON:
        own = f"{sys.base_prefix}, Python {sys.version_info[0]}.{sys.version_info[1]}"
        why = f"nodes share this environment, and Debian 12 has Python {PYTHON[0]}.{PYTHON[1]} in /usr"
        fix = "Set up anew with the system's: make clean; rm -r .venv; make setup PYTHON=/usr/bin/python3.11"
        problems.append(Problem(key="the virtual environment", value=own, why=why, fix=fix))
    return problems


def lacking_for(machines: int) -> list[Problem]:
    """What stands in the way of so many at once: past the kernel's limit, which is for all of a user's, none boots."""
    needed, limit = machines * INOTIFY_EACH, int(INOTIFY_LIMIT.read_text())
    if needed <= limit:
        return []
    why = f"{machines} booted nodes hold up to {needed} inotify instances"
    more = max(1024, 2 * needed)
    fix = f"Raise it: sysctl -w fs.inotify.max_user_instances={more}, or rehearse fewer nodes (--nodes)"
    return [Problem(key="fs.inotify.max_user_instances", value=str(limit), why=why, fix=fix)]
