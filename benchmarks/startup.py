"""Startup time from running instances to a started job, with 1, 2, 4 and 8 booted nodes. Requires root.

Nodes configure themselves in parallel, so more nodes take longer only because they share this machine's processors. The
key `ratio` is the elapsed time of the last size, divided by the larger of: the elapsed time of the first size; the
processor time of all nodes divided by the number of processors. Torch is shared read-only; each node does all else
separately.
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
sys.path.insert(0, str(ROOT))  # so that the script finds the project's packages
from benchmarks.launch import NullDisplay
from benchmarks.options import AsJson, Sizes
from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.mocks import up
from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.hypervisor import Hypervisor
from rehearsal.hypervisor.nspawn.backend import NspawnBackend
from rehearsal.hypervisor.nspawn.machine import Machine
from rehearsal.hypervisor.nspawn.requirements import check_inotify_limit
from rehearsal.hypervisor.registry import select_backend
from rehearsal.substitutions import substitute_settings
from rehearsal.workspace import aws_environment
from trainyard.aws import clients
from trainyard.config import CONFIG_KEY
from trainyard.errors import InputError
from trainyard.models.events import TaskEvent
from trainyard.models.layout import RunLayout
from trainyard.models.streams import Cursor, node_events
from trainyard.node.agent import job_unit
from trainyard.operations.cluster import Cluster
from trainyard.operations.launch import Launch

STACK = "custom-job"
SIZES = (1, 2, 4, 8)
SLOWEST_TASKS = 8
WORKER_ROLE = "workers"  # part of the name of the IAM role that all workers have
RECONFIGURE_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class StartupResult:
    """Measurements of one startup."""

    elapsed_seconds: float
    cpu_seconds: float  # of all workers
    calls: int  # AWS API calls of all workers
    task_seconds: dict[str, float]  # medians of the slowest tasks of the node playbook
    reconfigure_seconds: float  # bootstrap and playbook on a node that is already configured


def start_cluster(nodes: int) -> StartupResult:
    """Start a new cluster in a new account, and measure until its job has started.

    Raises RuntimeError if the account's journal has no call of a worker.
    """
    stack = f"startup-{nodes}"
    config: dict[str, Any] = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{STACK}.yaml").read_text())["config"]
    settings, _ = substitute_settings(config[CONFIG_KEY], nodes, "nspawn")
    settings["job"] |= {
        "processes_per_node": 1,
        "command": ["train.py", "--epochs", "100000"],
    }  # longer than the measurement
    with (
        tempfile.TemporaryDirectory() as folder,
        EmulatedAws.start(Path(folder) / "aws") as aws,
        aws_environment(aws.environment()),
        NspawnBackend(Path(folder), print) as backend,
        Hypervisor(aws, backend, f"trainyard/{stack}", print),
    ):
        clients.client.cache_clear()
        try:
            up({**config, CONFIG_KEY: settings}, stack, ROOT, account=EmulatedAccount(aws.region, run_commands=False))
            cluster = Cluster(stack, aws.region)
            before = len(aws.journal())
            launched = Launch(cluster, NullDisplay()).start()
            cpu = sum(backend.machines[node].cgroup.cpu_seconds() for node in launched.nodes)
            calls = [entry for entry in aws.journal()[before:] if WORKER_ROLE in (entry.role or "")]
            if not calls:
                raise RuntimeError(f"no call of a role whose name contains {WORKER_ROLE!r}")
            durations: dict[str, list[float]] = defaultdict(list)
            for event in node_events(Cursor(cluster.data, RunLayout(launched.run).events)):
                if isinstance(event, TaskEvent):
                    durations[f"{event.ansible_role}: {event.task}"].append(event.seconds)
            reconfigure_seconds = reconfigure(backend.machines[launched.nodes[0]])
        finally:
            clients.client.cache_clear()
    medians = {name: round(median(seconds), 2) for name, seconds in durations.items()}
    slowest = sorted(medians.items(), key=lambda item: -item[1])[:SLOWEST_TASKS]
    return StartupResult(launched.phases["startup"], cpu, len(calls), dict(slowest), reconfigure_seconds)


def reconfigure(machine: Machine) -> float:
    """Return the seconds to configure a configured node again. Raises RuntimeError if that fails.

    The job is stopped meanwhile: it would use all processors of this machine.
    """
    machine.run_command("systemctl", "kill", "--signal=STOP", "trainyard-job.service", f"{job_unit.PREFIX}*.service")
    started = time.monotonic()
    process = machine.run_command(
        "systemctl", "restart", "trainyard-node.service", timeout_seconds=RECONFIGURE_TIMEOUT_SECONDS
    )
    if process.returncode:
        raise RuntimeError(f"reconfiguration of the node failed: {process.stderr}")
    return time.monotonic() - started


def measure(sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """Measure each size once, the smallest first, after one startup that fills caches."""
    processors = len(os.sched_getaffinity(0))
    start_cluster(sizes[0])
    results = {nodes: start_cluster(nodes) for nodes in sizes}
    first, last = results[sizes[0]], results[sizes[-1]]
    # Agents poll once per second: calls are counted per second, since their number depends on the duration.
    rates = {nodes: result.calls / nodes / result.elapsed_seconds for nodes, result in results.items()}
    return {
        "stack": STACK,
        "processors": processors,
        "wall_seconds": {str(nodes): round(result.elapsed_seconds, 2) for nodes, result in results.items()},
        "cpu_seconds": {str(nodes): round(result.cpu_seconds, 2) for nodes, result in results.items()},
        "calls_per_node": {str(nodes): round(result.calls / nodes, 1) for nodes, result in results.items()},
        "calls_per_node_second": {str(nodes): round(rate, 2) for nodes, rate in rates.items()},
        "reconfigure_seconds": round(first.reconfigure_seconds, 2),
        "slowest_tasks": last.task_seconds,
        # Relative to the limit of the processors, which all nodes share.
        "ratio": round(last.elapsed_seconds / max(first.elapsed_seconds, last.cpu_seconds / processors), 3),
        "ratio_calls": round(rates[sizes[-1]] / rates[sizes[0]], 3),
    }


def main(as_json: AsJson = False, sizes: Sizes = None) -> None:
    """Seconds from running instances to a started job, for each number of booted nodes."""
    try:
        select_backend("nspawn")
        if problems := check_inotify_limit(max(sizes or SIZES) + 1):
            raise InputError(problems)
    except InputError as error:
        print(f"startup: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    started = time.monotonic()
    results = measure(sizes or SIZES)
    if as_json:
        print(json.dumps(results))
        return
    for nodes, elapsed in results["wall_seconds"].items():
        cpu, calls = results["cpu_seconds"][nodes], results["calls_per_node"][nodes]
        print(f"{nodes:>5} nodes: {elapsed:6.1f} s, {cpu:6.1f} CPU-s, {calls} calls per node")
    print(f"{results['reconfigure_seconds']:9.2f} s  to configure a configured node again")
    for name, seconds in results["slowest_tasks"].items():
        print(f"{seconds:9.2f} s  {name}")
    duration = time.monotonic() - started
    print(f"ratio {results['ratio']}, of calls per node and second {results['ratio_calls']}; {duration:.0f} s")


if __name__ == "__main__":
    typer.run(main)
