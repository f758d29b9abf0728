"""Goodput of a long run: the unmodified controller, a simulated account, nodes and clock, and real rates of faults.

`trace`: 584 faults of 400 servers in 345 days, as one job of 400 nodes: the data set InfiniteHBD-Trace
(https://github.com/stepfun-ai/InfiniteHBD-Trace). `llama`: the rate and the causes of the training of Llama 3
(https://arxiv.org/abs/2407.21783, table 5) on 2,048 nodes, at random times. docs/benchmarks.md names what is not
modelled.
"""

import json
import logging
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script finds the project's packages
from benchmarks.options import AsJson
from benchmarks.simulation.faults import DAY, LLAMA_DAYS, LLAMA_NODES, poisson_faults, read_trace
from benchmarks.simulation.simulation import INSTANCE_TYPE, Result, Scenario, Simulation, hosts_of
from benchmarks.simulation.times import Times
from trainyard.config.catalog import catalog

TRACE = Path(__file__).resolve().parents[2] / "shared/traces/infinitehbd-fault_trace.json"
TRACE_DAYS, TRACE_NODES = 345.0, 400


class Source(StrEnum):
    """Source of the faults."""

    TRACE = "trace"
    LLAMA = "llama"


GOALS = {Source.TRACE: 0.975, Source.LLAMA: 0.95}


def create_scenario(source: Source, trace: Path, days: float | None, spares: int, seed: int) -> Scenario:
    """Return the scenario of a source. `days`: of the run; None: all."""
    if source is Source.LLAMA:
        seconds = (days or LLAMA_DAYS) * DAY
        faults = tuple(poisson_faults(seed, seconds, LLAMA_NODES))
        return Scenario(name=source, nodes=LLAMA_NODES, seconds=seconds, faults=faults, spares=spares, seed=seed)
    seconds = (days or TRACE_DAYS) * DAY
    faults = tuple(fault for fault in read_trace(trace, seed) if fault.start < seconds)
    return Scenario(
        name=source,
        nodes=TRACE_NODES,
        seconds=seconds,
        faults=faults,
        hosts=hosts_of(faults),
        spares=spares,
        seed=seed,
    )


def summarize(scenario: Scenario, result: Result, real_seconds: float) -> dict[str, Any]:
    """Return the result as JSON."""
    price = _price()
    shares = {use: round(result.ledger.share(use), 5) for use in sorted(result.ledger.seconds)}
    return {
        "faults": scenario.name,
        "nodes": scenario.nodes,
        "days": round(scenario.seconds / DAY, 1),
        "spares": scenario.spares,
        "spares_usd_per_hour": round(scenario.spares * price, 2),
        "goodput": round(result.goodput, 5),
        "shares": shares,
        "scenario_faults": len(scenario.faults),
        "job_node_faults": sum(result.causes.values()),
        "attempts": result.attempts,
        "replaced": result.replaced,
        "false_replacements": len(result.false_replacements),
        "leaked": len(result.leaked),
        "ended": None if result.outcome is None else result.outcome.reason,
        "instance_hours": round(result.billed_hours),
        "controller_steps": result.steps,
        "real_seconds": round(real_seconds, 1),
    }


def _price() -> float:
    """Return the on-demand price of a node, USD an hour."""
    instance_type = catalog().get(INSTANCE_TYPE)
    assert instance_type is not None
    return instance_type.on_demand_usd or 0.0


def meets_goals(source: Source, row: dict[str, Any]) -> bool:
    """Return whether a result meets the goals."""
    return bool(
        row["goodput"] >= GOALS[source] and not row["false_replacements"] and not row["leaked"] and row["ended"] is None
    )


def print_row(row: dict[str, Any], is_good: bool) -> None:
    """Print one result for people."""
    print(
        f"{row['faults']}, {row['nodes']} nodes, {row['days']:g} days, {row['spares']} spares "
        f"({row['spares_usd_per_hour']:g} USD/h): goodput {row['goodput']:.2%}, "
        f"{'goals met' if is_good else 'GOALS NOT MET'}"
    )
    names = ("job_node_faults", "attempts", "replaced", "false_replacements", "leaked", "ended")
    print("  " + ", ".join(f"{name.replace('_', ' ')} {row[name]}" for name in names))
    lost = {use: share for use, share in row["shares"].items() if use != "training"}
    print(
        "  lost: " + ", ".join(f"{use} {share:.3%}" for use, share in sorted(lost.items(), key=lambda each: -each[1]))
    )


def main(
    source: Annotated[list[Source] | None, typer.Option("--faults", help="Sources of faults. Default: both.")] = None,
    spares: Annotated[
        list[int] | None, typer.Option("--spares", help="Numbers of spare nodes. Default: 0, 1, 4.")
    ] = None,
    days: Annotated[float | None, typer.Option("--days", help="Simulated days. Default: all.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of random times and kinds.")] = 1,
    trace: Annotated[Path, typer.Option("--trace", help="File of the trace.")] = TRACE,
    as_json: AsJson = False,
) -> None:
    """Simulate runs, and print their goodput and where the other time went."""
    rows = []
    for each in source or list(Source):
        if each is Source.TRACE and not trace.exists():
            print(f"{trace} does not exist: the trace is skipped", file=sys.stderr)
            continue
        for number in spares or (0, 1, 4):
            scenario, started = create_scenario(each, trace, days, number, seed), time.monotonic()
            row = summarize(scenario, Simulation(scenario).run(), time.monotonic() - started)
            rows.append({**row, "goals_met": meets_goals(each, row)})
            if not as_json:
                print_row(row, rows[-1]["goals_met"])
    times = Times().rows()
    if as_json:
        print(json.dumps({"runs": rows, "seconds": {name: seconds for name, seconds, _ in times}}))
        return
    print("durations, seconds:")
    for name, seconds, origin in times:
        print(f"  {name:18} {seconds:7g}  {origin}")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # the messages of the controller
    typer.run(main)
