"""How a program starts in a node of a rehearsal: the program, its environment and its folder."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from rehearsal.hypervisor.nspawn.backend import namespace_suffix
from rehearsal.hypervisor.nspawn.machine import MACHINE_ENVIRONMENT, enter_command, namespace_processes
from rehearsal.hypervisor.nspawn.network import Network
from rehearsal.hypervisor.process.backend import INIT_MODULE
from rehearsal.hypervisor.processes import find_processes
from trainyard.models.report import BackendName


@dataclass(frozen=True, kw_only=True)
class NodeShell:
    """A shell in a node."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: Path

    def run(self, command: str | None, terminal: str) -> int:
        """Run a command, or an interactive shell for None. Returns its exit status; `terminal` is the value of TERM."""
        argv = [*self.argv, *(["-c", command] if command is not None else [])]
        environment = {**self.environment, "TERM": terminal}
        return subprocess.run(argv, cwd=self.folder, env=environment, check=False).returncode


def node_shell(folder: Path, backend: BackendName, instance: str) -> NodeShell:
    """Return the shell of an instance of the rehearsal in `folder`. Raises LookupError if it does not run."""
    shell = _in_folder(folder, instance) if backend == "process" else _in_machine(folder, instance)
    if shell is None:
        raise LookupError(f"{instance} does not run in {folder}")
    return shell


def _in_folder(folder: Path, instance: str) -> NodeShell | None:
    """Use the environment of the node's init process. The shell ends with the node, which it is a process of."""
    root = folder / "nodes" / instance
    for process in find_processes(folder, root):
        if INIT_MODULE in process.cmdline():
            prompt = {"PS1": f"{instance} \\w \\$ "}
            return NodeShell(argv=["bash", "--norc"], environment={**process.environ(), **prompt}, folder=root)
    return None


def _in_machine(folder: Path, instance: str) -> NodeShell | None:
    """Enter the namespaces of the machine's process 1."""
    namespace = Network(namespace_suffix(folder)).namespace_name(instance)
    for process in map(psutil.Process, namespace_processes(namespace)):
        if _pid_in_namespace(process.pid) == 1:
            argv = enter_command(process.pid, "/bin/bash")
            return NodeShell(argv=argv, environment=MACHINE_ENVIRONMENT, folder=Path("/"))
    return None


def _pid_in_namespace(process: int) -> int:
    """Return the id that a process has in its own process namespace."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])
