"""Seconds and resources of a preview against the number of nodes: the group grows, not the program's graph.

The stack a100-cluster on an account that answers from constants, so that only our own program and the SDK are timed.
In fresh processes also a preview against a script that does no more than import the same classes of resources.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # started as a file, it finds the rooms
from benchmarks.options import AsJson, Sizes
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static import StaticAccount

STACK = "a100-cluster"
SIZES = (2, 64, 1024)
_COLD_PREVIEW = f"""\
from pathlib import Path
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static import StaticAccount
up(Path("stacks/Pulumi.{STACK}.yaml"), {STACK!r}, Path.cwd(), preview=True, account=StaticAccount())
"""


def config_of(stack: str, nodes: int) -> dict[str, Any]:
    """The stack file's config with another number of nodes, and no cap on what these may cost."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "stacks" / f"Pulumi.{stack}.yaml").read_text())["config"]
    cluster = config["trainyard:cluster"]
    # One sequence a process: the batch must divide among any number of them.
    train = {**cluster["job"]["train"], "batch_size": nodes * 8, "micro_batch_size": 1}
    job, guardrails = {**cluster["job"], "train": train}, {**cluster.get("guardrails", {}), "max_cost_usd": None}
    return {**config, "trainyard:cluster": {**cluster, "nodes": nodes, "job": job, "guardrails": guardrails}}


def measure(sizes: Sequence[int] = SIZES, runs: int = 5) -> dict[str, Any]:
    """Medians of runs that take turns, after one warm-up; `ratio`: the last size's seconds over the first's."""
    configs = {nodes: config_of(STACK, nodes) for nodes in sizes}
    seconds: dict[int, list[float]] = {nodes: [] for nodes in sizes}
    resources: dict[int, int] = {}
    _preview(configs[sizes[0]])
    for _ in range(runs):
        for nodes in sizes:
            took, resources[nodes] = _preview(configs[nodes])
            seconds[nodes].append(took)
    found = {nodes: median(taken) for nodes, taken in seconds.items()}
    return {
        "stack": STACK,
        "runs": runs,
        "seconds": {str(nodes): round(value, 4) for nodes, value in found.items()},
        "resources": {str(nodes): count for nodes, count in resources.items()},
        "ratio": round(found[sizes[-1]] / found[sizes[0]], 3),
    }


def measure_cold(runs: int = 7) -> dict[str, Any]:
    """The stack as shipped, in fresh processes that take turns, from start to end: medians of seconds.

    `ratio_import`: a preview's over those of the imports alone, which any program with these resources has to pay.
    """
    scripts = {"preview": _COLD_PREVIEW, "imports": imports()}
    seconds: dict[str, list[float]] = {name: [] for name in scripts}
    for turn in range(runs):
        for name in sorted(scripts, reverse=turn % 2 == 1):
            seconds[name].append(_fresh(scripts[name]))
    found = {name: median(taken) for name, taken in seconds.items()}
    return {
        "cold_seconds": {name: round(value, 4) for name, value in found.items()},
        "ratio_import": round(found["preview"] / found["imports"], 3),
    }


def imports() -> str:
    """A script that imports the class of every resource in the stack's graph, and nothing else."""
    planned = up(ROOT / "stacks" / f"Pulumi.{STACK}.yaml", STACK, ROOT, preview=True, account=StaticAccount())
    types = {resource.type for resource in planned.resources.values() if resource.custom}
    return "".join(f"{line}\n" for line in sorted(map(_import_of, types)))


def _import_of(token: str) -> str:
    """`aws:ec2/vpc:Vpc` is `Vpc` of `pulumi_aws.ec2`, `command:local:Command` `Command` of `pulumi_command.local`."""
    found = re.fullmatch(r"(\w+):(\w+)(?:/\w+)?:(\w+)", token)
    assert found, token
    package, module, name = found.groups()
    return f"from pulumi_{package}.{module} import {name}"


def _fresh(script: str) -> float:
    """Seconds of a Python of its own, which finds the rooms."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
    return time.perf_counter() - began


def _preview(config: dict[str, Any]) -> tuple[float, int]:
    began = time.perf_counter()
    planned = up(config, STACK, ROOT, preview=True, account=StaticAccount())
    took = time.perf_counter() - began
    return took, sum(resource.custom for resource in planned.resources.values())


def main(
    as_json: AsJson = False,
    sizes: Sizes = None,
    runs: Annotated[int, typer.Option("--runs", min=5, help="Runs of each size.")] = 5,
    cold_runs: Annotated[int, typer.Option("--cold-runs", min=1, help="Fresh processes of each kind.")] = 7,
) -> None:
    """Seconds and resources of a preview for each number of nodes, and its share of what imports take anyway."""
    found = measure(sizes or SIZES, runs) | measure_cold(cold_runs)
    if as_json:
        print(json.dumps(found))
        return
    for nodes, took in found["seconds"].items():
        print(f"{nodes:>5} nodes: {took:.3f} s, {found['resources'][nodes]} resources")
    print(f"ratio {found['ratio']}")
    for name, took in found["cold_seconds"].items():
        print(f"{name} in a fresh process: {took:.3f} s")
    print(f"ratio_import {found['ratio_import']}")


if __name__ == "__main__":
    typer.run(main)
