"""Locks between rehearsals: one rehearsal per stack at a time, and one block of loopback addresses per rehearsal."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rehearsal.private_files import make_private_folder
from trainyard.errors import InputError, Problem
from trainyard.models.kept_rehearsal import find_kept_rehearsal

# A rehearsal holds an address block by listening on this port of the block's first address. The kernel enforces this
# lock for all users of the machine and releases it when the process ends.
_LOCK_PORT = 7770
_NETWORK = "127.77"


@contextmanager
def stack_lock(folder: Path, stack: str) -> Iterator[str]:
    """Hold the lock file of a stack, `folder`/lock. The folder becomes private: its files contain keys.

    Yields the process id of the previous holder if it was killed before it could release the lock, else an empty
    string. Raises InputError with the process id of the holder when another rehearsal holds the lock.
    """
    make_private_folder(folder)
    with (folder / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            process = file.read().strip() or "unknown"
            if find_kept_rehearsal(folder) is not None:
                reason = f"a rehearsal of this stack is kept in {folder} (process {process})"
                fix = f"End it with trainyard rehearse --down -s {stack}"
            else:
                reason = f"another rehearsal of this stack runs in {folder} (process {process})"
                fix = "Wait until it ends, or kill that process"
            raise InputError([Problem("--stack", stack, reason, fix, "stack_in_use")]) from None
        file.seek(0)
        killed_holder = file.read().strip()
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield killed_holder
        finally:
            file.truncate(0)


def is_locked(folder: Path) -> bool:
    """Return whether a rehearsal holds the lock of a stack."""
    if not (folder / "lock").exists():
        return False
    with (folder / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


@contextmanager
def address_block() -> Iterator[str]:
    """Reserve a free /24 of 127.77.0.0/16 for the nodes of one rehearsal. Raises InputError when none is free."""
    for block in range(1, 255):
        lock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            lock.bind((f"{_NETWORK}.{block}.1", _LOCK_PORT))
            lock.listen(1)
        except OSError:
            lock.close()
            continue
        with lock:
            yield f"{_NETWORK}.{block}.0/24"
        return
    reason = f"all 254 address blocks are in use, by other rehearsals or by a program that listens on port {_LOCK_PORT}"
    fix = f"End the processes that listen there; ss -ltnp 'sport = :{_LOCK_PORT}' lists them"
    raise InputError([Problem("loopback network", f"{_NETWORK}.0.0/16", reason, fix, "loopback_blocks_in_use")])
