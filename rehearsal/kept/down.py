"""`trainyard rehearse --down`: ends a kept rehearsal, or removes what remains of a kept rehearsal that was killed."""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil

from rehearsal.display import Display
from rehearsal.hypervisor.processes import is_alive
from rehearsal.locks import is_locked, stack_lock
from rehearsal.report import REPORT_FILE
from rehearsal.workspace import prepare_folder
from trainyard.errors import InputError, Problem
from trainyard.models.kept_rehearsal import LOG, KeptRehearsal, find_kept_rehearsal
from trainyard.models.report import Report

END_TIMEOUT_SECONDS = 3600.0  # a `pulumi up` that is running may take half of it
_POLL_SECONDS = 0.2


def end_kept_rehearsal(folder: Path, stack: str) -> Report | None:
    """End the kept rehearsal of a stack, show its progress on stderr, and return its report.

    Returns None after it has removed the leftovers of a rehearsal that was killed. Raises InputError when none is kept,
    RuntimeError when it ends without a report, and TimeoutError.
    """
    kept = find_kept_rehearsal(folder)
    if kept is None:
        reason, fix = "no rehearsal of this stack is kept", f"Start one: trainyard rehearse --keep -s {stack}"
        if is_locked(folder):
            reason, fix = f"the rehearsal that runs in {folder} is not kept, or is ending", "Wait until it ends"
        raise InputError([Problem("--down", stack, reason, fix, "not_kept")])
    if not is_locked(folder):
        _remove_leftovers(folder, stack)
        return None
    _end(kept, folder / LOG)
    file = folder / REPORT_FILE
    if not file.exists():
        raise RuntimeError(
            f"the kept rehearsal (process {kept.process}) ended without a report; its log: {folder / LOG}"
        )
    report = Report.model_validate_json(file.read_text())
    if report.ok and (nodes := folder / "nodes").exists():  # environments and caches of the nodes have gigabytes
        shutil.rmtree(nodes)
    return report


def _remove_leftovers(folder: Path, stack: str) -> None:
    with stack_lock(folder, stack) as killed_process, Display() as display:
        prepare_folder(folder, display, killed_process)
        text = "the kept rehearsal was killed. Its account is lost and could not be audited. The leftovers are removed"
        display.print_line("kept", text)


def _end(kept: KeptRehearsal, log: Path) -> None:
    """Send the signal and copy the new lines of the log to stderr until the process has ended."""
    process, deadline = psutil.Process(kept.process), time.monotonic() + END_TIMEOUT_SECONDS
    with log.open(errors="replace") as lines:
        lines.seek(0, os.SEEK_END)
        process.send_signal(signal.SIGTERM)
        while True:
            has_ended = not is_alive(process)
            sys.stderr.write(lines.read())
            if has_ended:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the kept rehearsal (process {kept.process}) has not ended after {END_TIMEOUT_SECONDS:.0f} s; its "
                    f"log: {log}"
                )
            time.sleep(_POLL_SECONDS)
