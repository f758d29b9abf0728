"""The backends by name, and removal of the processes that earlier rehearsals left running."""

import shutil
from collections.abc import Callable
from pathlib import Path

from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.backend import Backend
from rehearsal.hypervisor.nspawn import backend as nspawn
from rehearsal.hypervisor.nspawn.requirements import missing_requirements
from rehearsal.hypervisor.process.backend import ProcessBackend
from rehearsal.hypervisor.processes import kill_rehearsal_processes
from trainyard.errors import InputError, Problem, did_you_mean
from trainyard.models.report import BackendName

Log = Callable[[str], None]
BACKENDS: dict[BackendName, Callable[[Path, Log], Backend]] = {
    "process": lambda folder, log: ProcessBackend(folder),
    "nspawn": nspawn.NspawnBackend,
}


def select_backend(name: str) -> BackendName:
    """Parse the value of --backend. Raises InputError for an unknown backend, or one that this machine cannot run."""
    for backend in BACKENDS:
        if name == backend:
            if backend == "nspawn" and (problems := missing_requirements()):
                raise InputError(problems)
            return backend
    fix = f"{did_you_mean(name, BACKENDS)}Use one of {', '.join(BACKENDS)}"
    raise InputError([Problem("--backend", name, "unknown backend", fix, "unknown_backend")])


def check_account_addresses(backend: BackendName, aws: EmulatedAws) -> None:
    """Check that the backend can use the addresses of the account's instances. Raises InputError."""
    if aws.uses_loopback != (backend == "process"):
        kind = "loopback addresses" if aws.uses_loopback else "addresses of their subnets"
        reason = f"its instances have {kind}, which the backend {backend} cannot use"
        fix = f"Start an account with `python -m rehearsal aws --backend {backend}`"
        raise InputError([Problem("AWS_ENDPOINT_URL", aws.endpoint, reason, fix, "instance_addresses_unreachable")])


def remove_leftovers(folder: Path) -> int:
    """Kill the processes of an earlier rehearsal in this folder and remove its nodes. Returns their number."""
    killed = nspawn.remove_leftovers(folder) + kill_rehearsal_processes(folder)
    nodes = folder / "nodes"
    if nodes.exists():
        shutil.rmtree(nodes)
    return killed
