"""What this machine must have before anything is made: Linux, room in build/, a kernel that lets the nodes boot."""

import os
import shutil
import sys
from pathlib import Path

from rehearsal.hypervisor.nspawn.requirements import lacking_for
from trainyard.base import InputError, Problem
from trainyard.config.settings import StackSettings
from trainyard.models.report import BackendName

# A node holds the bundle, its play's artifacts and, for the built-in trainer, the corpus: 12 MiB, seen on CPU and GPU
# stacks. The account's journal, the results and the report stay below one more share.
SHARE_BYTES = 16 * 2**20


def check_machine(folder: Path, root: Path, settings: StackSettings, backend: BackendName) -> None:
    """`folder` is where the rehearsal writes, below `root`. Raises InputError with all that is in its way."""
    problems = []
    if sys.platform != "linux":
        why = "nodes are told apart by /proc and loopback addresses, as Linux has them"
        problems.append(Problem(key="the system", value=sys.platform, why=why, fix="Rehearse in a Linux machine"))
    there = next(path for path in (folder, *folder.parents) if path.exists())
    key, value = "the folder of the rehearsal", str(folder.relative_to(root))
    if not there.is_dir():
        why = f"{there.relative_to(root)} is not a folder"
        problems.append(Problem(key=key, value=value, why=why, fix="Move it out of the way"))
    elif not os.access(there, os.W_OK | os.X_OK):
        why = f"{there} can't be written to"
        problems.append(Problem(key=key, value=value, why=why, fix="Make it writable to this user"))
    elif (free := shutil.disk_usage(there).free) < (needed := room_needed(settings)):
        why = f"{free // 2**20} MiB are free there, {settings.nodes} nodes and their head need {needed // 2**20}"
        problems.append(Problem(key=key, value=value, why=why, fix="Make room, or rehearse fewer nodes (--nodes)"))
    if backend == "nspawn":
        problems += lacking_for(settings.nodes + 1)
    if problems:
        raise InputError(problems)


def room_needed(settings: StackSettings) -> int:
    """Bytes that a rehearsal writes at most; what a job of the user's own writes is not known."""
    return (settings.nodes + 2) * SHARE_BYTES
