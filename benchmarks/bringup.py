"""From instances that run to a job that has started, on 1, 2, 4 and 8 booted nodes, as root.

Nodes configure themselves side by side, so more of them take longer only as this machine's processors are shared: the
key `ratio` is the wall time of the last size over the larger of the first size's and the processor time of all nodes
spread over the processors. Torch is shared read-only; everything else a node does for itself.
"""

import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import typer
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # started as a file, it finds the rooms
from benchmarks.launch import Silent
from benchmarks.options import AsJson, Sizes
from rehearsal.adapter.account import Adapter
from rehearsal.adapter.mocks import up
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.nspawn.backend import NspawnBackend
from rehearsal.hypervisor.nspawn.machine import Machine
from rehearsal.hypervisor.nspawn.requirements import lacking_for
from rehearsal.hypervisor.registry import usable_backend
from rehearsal.scaling import scale
from rehearsal.workspace import environment
from trainyard.aws import s3 as objects
from trainyard.base import CONFIG_KEY, InputError
from trainyard.models.events import TaskEvent
from trainyard.models.layout import RunLayout
from trainyard.models.streams import Cursor, node_events
from trainyard.operations.cluster import Cluster
from trainyard.operations.launch import Launch

STACK = "own-job"
SIZES = (1, 2, 4, 8)
SLOWEST = 8
AGAIN_SECONDS = 120.0


@dataclass(frozen=True)
class BringUp:
    """One bring-up. `cpu`: processor seconds of all workers; `calls`: their AWS API calls; `tasks`: median seconds of
    the play's slowest tasks; `again`: seconds of the bootstrap and a play with nothing left to do, on one node."""

    wall: float
    cpu: float
    calls: int
    tasks: dict[str, float]
    again: float


def bring_up(nodes: int) -> BringUp:
    """A cluster of its own in an account of its own, until its job has started."""
    stack = f"bringup-{nodes}"
    config: dict[str, Any] = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{STACK}.yaml").read_text())["config"]
    settings, _ = scale(config[CONFIG_KEY], nodes, "nspawn")
    settings["job"] |= {"processes_per_node": 1, "command": ["train.py", "--epochs", "100000"]}  # it outlasts the look
    with (
        tempfile.TemporaryDirectory() as place,
        EmulatedAws.start(Path(place) / "aws") as aws,
        environment(aws.environment()),
        NspawnBackend(Path(place), print) as backend,
        Hypervisor(aws, backend, stack, print),
    ):
        objects.client.cache_clear()
        try:
            up({**config, CONFIG_KEY: settings}, stack, ROOT, account=Adapter(aws.region, run_commands=False))
            cluster = Cluster(stack, aws.region)
            before = len(aws.journal())
            launched = Launch(cluster, Silent()).go()
            cpu = sum(backend.machines[node].cgroup.cpu_seconds() for node in launched.nodes)
            calls = [entry for entry in aws.journal()[before:] if (entry.role or "").startswith("workers")]
            taken: dict[str, list[float]] = defaultdict(list)
            for event in node_events(Cursor(cluster.data, RunLayout(launched.run).events)):
                if isinstance(event, TaskEvent):
                    taken[f"{event.ansible_role}: {event.task}"].append(event.seconds)
            again = configure_again(backend.machines[launched.nodes[0]])
        finally:
            objects.client.cache_clear()
    tasks = sorted(((name, median(each)) for name, each in taken.items()), key=lambda one: -one[1])[:SLOWEST]
    return BringUp(launched.phases["bring_up"], cpu, len(calls), {name: round(each, 2) for name, each in tasks}, again)


def configure_again(machine: Machine) -> float:
    """Seconds, beside a job that is held: here it would take every processor. Raises RuntimeError where it fails."""
    machine.run("systemctl", "kill", "--signal=STOP", "trainyard-job.service")
    began = time.monotonic()
    done = machine.run("systemctl", "restart", "trainyard-node.service", seconds=AGAIN_SECONDS)
    if done.returncode:
        raise RuntimeError(f"the node can't be configured again: {done.stderr}")
    return time.monotonic() - began


def measure(sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """Each size once, the smallest first, after one bring-up that warms the caches."""
    processors = len(os.sched_getaffinity(0))
    bring_up(sizes[0])
    found = {nodes: bring_up(nodes) for nodes in sizes}
    first, last = found[sizes[0]], found[sizes[-1]]
    # Agents look for orders once a second: calls are told by the second, or waiting would count as work.
    rates = {nodes: one.calls / nodes / one.wall for nodes, one in found.items()}
    return {
        "stack": STACK,
        "processors": processors,
        "wall_seconds": {str(nodes): round(one.wall, 2) for nodes, one in found.items()},
        "cpu_seconds": {str(nodes): round(one.cpu, 2) for nodes, one in found.items()},
        "calls_per_node": {str(nodes): round(one.calls / nodes, 1) for nodes, one in found.items()},
        "calls_per_node_second": {str(nodes): round(rate, 2) for nodes, rate in rates.items()},
        "again_seconds": round(first.again, 2),
        "slowest_tasks": last.tasks,
        # Over what the processors allow: eight nodes share them.
        "ratio": round(last.wall / max(first.wall, last.cpu / processors), 3),
        "ratio_calls": round(rates[sizes[-1]] / rates[sizes[0]], 3),
    }


def main(as_json: AsJson = False, sizes: Sizes = None) -> None:
    """Seconds from running instances to a started job, for each number of booted nodes."""
    try:
        usable_backend("nspawn")
        if lacking := lacking_for(max(sizes or SIZES) + 1):
            raise InputError(lacking)
    except InputError as error:
        print(f"bringup: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    began = time.monotonic()
    found = measure(sizes or SIZES)
    if as_json:
        print(json.dumps(found))
        return
    for nodes, wall in found["wall_seconds"].items():
        cpu, calls = found["cpu_seconds"][nodes], found["calls_per_node"][nodes]
        print(f"{nodes:>5} nodes: {wall:6.1f} s, {cpu:6.1f} CPU-s, {calls} calls a node")
    print(f"{found['again_seconds']:9.2f} s  to configure a node again, with nothing left to do")
    for name, seconds in found["slowest_tasks"].items():
        print(f"{seconds:9.2f} s  {name}")
    print(
        f"ratio {found['ratio']}, of calls a node and second {found['ratio_calls']}; {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    typer.run(main)
