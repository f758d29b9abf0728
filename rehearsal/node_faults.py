"""Faults of a worker and of its agent, injected by signals."""

import signal
from pathlib import Path
from typing import Literal

import psutil
from pydantic import Field

from rehearsal.hypervisor.processes import environments, send_signal
from trainyard.base import StrictModel


class _NodeFault(StrictModel):
    node: int = Field(ge=0, description="Worker node, in the order of node ranks.")
    step: int = Field(default=1, ge=1, description="Step of the built-in trainer after which the fault happens.")


class AgentKill(_NodeFault):
    """A killed agent: it gets SIGKILL."""

    kind: Literal["agent-kill"] = "agent-kill"

    def inject(self, rank: psutil.Process) -> bool:
        """Kill the agent of the node on which this rank runs; return False when it does not run."""
        return _signal_agent(rank, signal.SIGKILL)


class AgentHang(_NodeFault):
    """An agent that hangs: it gets SIGSTOP."""

    kind: Literal["agent-hang"] = "agent-hang"

    def inject(self, rank: psutil.Process) -> bool:
        """Suspend the agent of the node on which this rank runs; return False when it does not run."""
        return _signal_agent(rank, signal.SIGSTOP)


class NodeHang(_NodeFault):
    """A node that stops: all of its processes get SIGSTOP, and its connections stay open.

    So do those of a node whose kernel hangs or that loses its power: nothing closes them (RFC 9293, 3.8.5).
    """

    kind: Literal["node-hang"] = "node-hang"

    def inject(self, rank: psutil.Process) -> bool:
        """Suspend all processes of the node on which this rank runs."""
        place = _place(rank)
        processes = [process for process, _ in environments() if _place(process) == place]
        for process in processes:
            send_signal(process, signal.SIGSTOP)
        return bool(processes)


NodeFault = AgentKill | AgentHang | NodeHang


def _signal_agent(rank: psutil.Process, number: signal.Signals) -> bool:
    place = _place(rank)
    for process, _ in environments():
        if _place(process) == place and _is_agent(process):
            send_signal(process, number)
            return True
    return False


def _is_agent(process: psutil.Process) -> bool:
    try:
        return process.cmdline()[-2:] == ["-m", "trainyard.node.agent"]
    except psutil.Error:  # it has ended
        return False


def _place(process: psutil.Process) -> tuple[Path, str | None] | None:
    """Return what the processes of one node share: a booted node has a namespace, a node of processes a root folder."""
    try:
        return Path(f"/proc/{process.pid}/ns/pid").readlink(), process.environ().get("TRAINYARD_ROOT")
    except (psutil.Error, OSError):  # it has ended
        return None
