"""The back-ends by name, and what any of them may have left."""

import shutil
from collections.abc import Callable
from pathlib import Path

from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.backend import Backend
from rehearsal.hypervisor.nspawn import backend as nspawn
from rehearsal.hypervisor.nspawn.requirements import lacking
from rehearsal.hypervisor.process.backend import ProcessBackend
from rehearsal.hypervisor.processes import kill_marked
from trainyard.base import InputError, Problem
from trainyard.models.report import BackendName

Say = Callable[[str], None]
BACKENDS: dict[BackendName, Callable[[Path, Say], Backend]] = {
    "process": lambda folder, say: ProcessBackend(folder),
    "nspawn": nspawn.NspawnBackend,
}


def usable_backend(given: str) -> BackendName:
    """What `--backend` asks for. Raises InputError for what is no back-end, or can't be had here."""
    for name in BACKENDS:
        if given == name:
            if name == "nspawn" and (problems := lacking()):
                raise InputError(problems)
            return name
    fix = f"Write one of {', '.join(BACKENDS)}"
    raise InputError([Problem(key="--backend", value=given, why="no such back-end", fix=fix)])


def suits(backend: BackendName, aws: EmulatedAws) -> None:
    """Raises InputError where an account that stays gives its instances addresses that this back-end has not."""
    if aws.loopback != (backend == "process"):
        have = "on the loopback" if aws.loopback else "of their subnets"
        fix = f"Start one with `python -m rehearsal aws --backend {backend}`"
        problem = Problem(
            key="AWS_ENDPOINT_URL", value=aws.endpoint, why=f"its instances have addresses {have}", fix=fix
        )
        raise InputError([problem])


def sweep(folder: Path) -> int:
    """End what an earlier rehearsal in this folder left running. Returns how many processes that were."""
    ended = nspawn.sweep(folder) + kill_marked(folder)
    nodes = folder / "nodes"
    if nodes.exists():
        shutil.rmtree(nodes)
    return ended
