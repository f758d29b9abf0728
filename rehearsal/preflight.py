"""Checks this machine before a rehearsal starts: Linux, disk space, and kernel limits for booted nodes."""

import os
import shutil
import sys
from pathlib import Path

from rehearsal.hypervisor.nspawn.requirements import check_inotify_limit
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError, Problem
from trainyard.models.report import BackendName

# A node stores the bundle, the artifacts of its playbook and, for the built-in trainer, the corpus: 12 MiB, measured
# on CPU and GPU stacks. The account's journal, the results and the report need less than one more share.
NODE_DISK_BYTES = 16 * 2**20


def check_machine(
    folder: Path, root: Path, settings: StackSettings, backend: BackendName, source_bytes: int = 0
) -> None:
    """Check that this machine can run the rehearsal. Raises InputError with all problems.

    `folder` is the folder that the rehearsal writes to, below the folder `root` of the project. `source_bytes`: size of
    the data and the model of the user, which the account and each node store.
    """
    problems = []
    if sys.platform != "linux":
        reason = "the rehearsal needs Linux: it uses /proc and the loopback network 127.0.0.0/8"
        fix = "Run it on a Linux machine or in a Linux virtual machine"
        problems.append(Problem("operating system", sys.platform, reason, fix, "operating_system_unsupported"))
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    key, value = "rehearsal folder", str(folder.relative_to(root))
    if not existing.is_dir():
        reason = f"{existing.relative_to(root)} is not a folder"
        problems.append(Problem(key, value, reason, "Move or delete that file", "not_a_folder"))
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = f"{existing} is not writable"
        problems.append(Problem(key, value, reason, "Give this user write access to it", "folder_not_writable"))
    elif (free := shutil.disk_usage(existing).free) < (required := required_disk_bytes(settings, source_bytes)):
        reason = (
            f"{free // 2**20} MiB are free there, but {settings.nodes} workers and the head need {required // 2**20}"
        )
        fix = "Free some disk space, or rehearse fewer nodes (--nodes)"
        problems.append(Problem(key, value, reason, fix, "disk_space_insufficient"))
    if backend == "nspawn":
        problems += check_inotify_limit(settings.nodes + 1)
    if problems:
        raise InputError(problems)


def required_disk_bytes(settings: StackSettings, source_bytes: int = 0) -> int:
    """Return the disk space that a rehearsal needs, in bytes. It does not include files that a custom job writes."""
    return (settings.nodes + 2) * NODE_DISK_BYTES + (settings.nodes + 1) * source_bytes
