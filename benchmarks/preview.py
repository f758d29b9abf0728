"""Duration and resources of a preview by number of nodes; the number of resources must not depend on it.

The stack a100-cluster is previewed with an account of constant values, so that only the Pulumi program and the SDK are
measured. In new processes a preview is also compared with a script that only imports the same resource classes.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # so that the script finds the project's packages
from benchmarks.options import AsJson, Sizes
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from tools.stack_files import read_stack_file

STACK = "a100-cluster"
SIZES = (2, 64, 1024)
_COLD_PREVIEW = f"""\
from pathlib import Path
from rehearsal.adapter.mocks import up
from rehearsal.adapter.static_account import StaticAccount
from tools.stack_files import read_stack_file
up(read_stack_file({STACK!r}), {STACK!r}, Path.cwd(), preview=True, account=StaticAccount())
"""


def config_of(stack: str, nodes: int) -> dict[str, Any]:
    """Return the stack's config with another number of nodes and without a cost limit."""
    config: dict[str, Any] = read_stack_file(stack)
    cluster = config["trainyard:cluster"]
    # One sequence per process, so that the batch size is divisible by the number of processes.
    train = {**cluster["job"]["train"], "batch_size": nodes * 8, "micro_batch_size": 1}
    job, guardrails = {**cluster["job"], "train": train}, {**cluster.get("guardrails", {}), "max_cost_usd": None}
    return {**config, "trainyard:cluster": {**cluster, "nodes": nodes, "job": job, "guardrails": guardrails}}


def measure(sizes: Sequence[int] = SIZES, runs: int = 5) -> dict[str, Any]:
    """Return medians of alternating runs after one warm-up; `ratio`: seconds of the last size over the first."""
    configs = {nodes: config_of(STACK, nodes) for nodes in sizes}
    seconds: dict[int, list[float]] = {nodes: [] for nodes in sizes}
    resources: dict[int, int] = {}
    _preview(configs[sizes[0]])
    for _ in range(runs):
        for nodes in sizes:
            elapsed, resources[nodes] = _preview(configs[nodes])
            seconds[nodes].append(elapsed)
    medians = {nodes: median(values) for nodes, values in seconds.items()}
    return {
        "stack": STACK,
        "runs": runs,
        "seconds": {str(nodes): round(value, 4) for nodes, value in medians.items()},
        "resources": {str(nodes): count for nodes, count in resources.items()},
        "ratio": round(medians[sizes[-1]] / medians[sizes[0]], 3),
    }


def measure_cold(runs: int = 7) -> dict[str, Any]:
    """Measure the unchanged stack in alternating new processes: medians of seconds.

    `ratio_import`: a preview over the imports alone, which every program with these resources needs.
    """
    scripts = {"preview": _COLD_PREVIEW, "imports": import_script()}
    seconds: dict[str, list[float]] = {name: [] for name in scripts}
    for turn in range(runs):
        for name in sorted(scripts, reverse=turn % 2 == 1):
            seconds[name].append(_run_script(scripts[name]))
    medians = {name: median(values) for name, values in seconds.items()}
    return {
        "cold_seconds": {name: round(value, 4) for name, value in medians.items()},
        "ratio_import": round(medians["preview"] / medians["imports"], 3),
    }


def import_script() -> str:
    """Return a script that only imports the class of each resource in the stack, without garbage collection."""
    planned = up(read_stack_file(STACK), STACK, ROOT, preview=True, account=StaticAccount())
    types = {resource.type for resource in planned.resources.values() if resource.custom}
    imports = "".join(f"{line}\n" for line in sorted(map(_import_statement, types)))
    return f"import gc\ngc.disable()\n{imports}gc.freeze()\n"  # as infra/__main__.py


def _import_statement(token: str) -> str:
    """Return the import of a resource type: `aws:ec2/vpc:Vpc` is `Vpc` of `pulumi_aws.ec2`."""
    match = re.fullmatch(r"(\w+):(\w+)(?:/\w+)?:(\w+)", token)
    assert match, token
    package, module, name = match.groups()
    return f"from pulumi_{package}.{module} import {name}"


def _run_script(script: str) -> float:
    """Return the seconds of a new Python process."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)
    return time.perf_counter() - started


def _preview(config: dict[str, Any]) -> tuple[float, int]:
    started = time.perf_counter()
    planned = up(config, STACK, ROOT, preview=True, account=StaticAccount())
    elapsed = time.perf_counter() - started
    return elapsed, sum(resource.custom for resource in planned.resources.values())


def main(
    as_json: AsJson = False,
    sizes: Sizes = None,
    runs: Annotated[int, typer.Option("--runs", min=5, help="Runs of each size.")] = 5,
    cold_runs: Annotated[int, typer.Option("--cold-runs", min=1, help="New processes of each kind.")] = 7,
) -> None:
    """Seconds and resources of a preview for each number of nodes, and compared with the imports."""
    results = measure(sizes or SIZES, runs) | measure_cold(cold_runs)
    if as_json:
        print(json.dumps(results))
        return
    for nodes, elapsed in results["seconds"].items():
        print(f"{nodes:>5} nodes: {elapsed:.3f} s, {results['resources'][nodes]} resources")
    print(f"ratio {results['ratio']}")
    for name, elapsed in results["cold_seconds"].items():
        print(f"{name} in a new process: {elapsed:.3f} s")
    print(f"ratio_import {results['ratio_import']}")


if __name__ == "__main__":
    typer.run(main)
