"""The checks and the report of a chaos run. Without side effects, except that it prints the report."""

from collections.abc import Sequence
from statistics import median

from pydantic import Field
from rich.console import Console
from rich.table import Table

from rehearsal.chaos.instance_usage import InstanceUsage, measure_usage, replaced_nodes
from rehearsal.chaos.schedule import missing_kinds
from rehearsal.fault_effects import ends_attempt, replaceable_nodes
from rehearsal.recovery import PHASES, find_recoveries
from rehearsal.report import recovery_table
from rehearsal.run_records import RunRecords, workers
from trainyard.base import StrictModel
from trainyard.models.metrics import MetricLine
from trainyard.models.report import FaultInjection, NotRehearsed, Recovery, Report
from trainyard.quantity import quantity

MAX_UNEXPLAINED_SHARE = 0.02
# With a spare node, and at most one fault in this time on average.
MINIMUM_GOODPUT, GOODPUT_PERIOD_SECONDS = 0.9, 120.0


class Check(StrictModel):
    """One condition of a chaos run."""

    name: str = Field(description="Name of the condition.")
    ok: bool = Field(description="Whether it holds.")
    text: str = Field(description="Result of the check.")


class Durations(StrictModel):
    """Median and maximum of a phase of recovery over the faults of one kind, seconds."""

    median: float = Field(description="Median.")
    maximum: float = Field(description="Maximum.")


class ChaosReport(StrictModel):
    """`chaos.json`: result of a chaos run."""

    ok: bool = Field(description="Whether all checks passed.")
    stack: str = Field(description="Pulumi stack name.")
    seed: int = Field(description="Seed of the faults.")
    run: str | None = Field(description="Run id; null if no run started.")
    steps: int = Field(description="Steps of the job.")
    checks: tuple[Check, ...] = Field(description="The conditions.")
    goodput: float = Field(
        description="Share of the time from the first to the last step that useful steps and checkpoints take."
    )
    usage: InstanceUsage | None = Field(description="Use of the billed instance-seconds; null if the run did not end.")
    recoveries: tuple[Recovery, ...] = Field(description="Recovery from each fault, in order.")
    seconds_by_kind: dict[str, dict[str, Durations]] = Field(description="Kind of fault -> phase -> seconds.")
    not_rehearsed: tuple[NotRehearsed, ...] = Field(description="Kinds of faults that need another backend.")


def build_report(
    seed: int, report: Report, records: RunRecords, reference: Sequence[MetricLine], minimum_goodput: float = 0.0
) -> ChaosReport:
    """Return the report of a chaos run. `reference`: metric lines of the same job without faults."""
    instances = workers(records.instances)
    has_ended = bool(instances) and all(each.terminated_time is not None for each in instances)
    usage = measure_usage(report.injections, records) if has_ended else None
    recoveries = find_recoveries(report.injections, records, only_expected=True)
    checks = [
        _check("rehearsal", list(report.errors), "no errors"),
        _check_faults(report, recoveries),
        *_compare(records, reference),
        _check_saved_steps(recoveries),
        _check("leaks", [f"{each.kind} {each.id}" for each in report.leaked], "0 resources"),
        _check("healthy nodes", replaced_healthy_nodes(report.injections, records), "0 replaced", "replaced: "),
        _check_usage(usage),
        _check_goodput(usage, minimum_goodput),
    ]
    return ChaosReport(
        ok=all(check.ok for check in checks),
        stack=report.stack,
        seed=seed,
        run=report.run,
        steps=len(reference),
        checks=tuple(checks),
        goodput=usage.goodput if usage else 0.0,
        usage=usage,
        recoveries=tuple(recoveries),
        seconds_by_kind=seconds_by_kind(recoveries),
        not_rehearsed=missing_kinds(report.backend),
    )


def replaced_healthy_nodes(injections: Sequence[FaultInjection], records: RunRecords) -> list[str]:
    """Return the workers that were terminated before the last step although no fault called for it."""
    lines = records.final_lines
    end = lines[-1].time if lines else 0.0
    replaced = {each.id for each in workers(records.instances) if (each.terminated_time or end) < end}
    return sorted(replaced - replaceable_nodes(injections, records.instances))


def seconds_by_kind(recoveries: Sequence[Recovery]) -> dict[str, dict[str, Durations]]:
    """Return the durations of recovery by kind of fault and phase; without faults that ended no attempt."""
    kinds: dict[str, dict[str, list[float]]] = {}
    for recovery in recoveries:
        for phase in PHASES:
            seconds = getattr(recovery, phase)
            if seconds is not None:
                kinds.setdefault(recovery.kind, {}).setdefault(phase, []).append(seconds)
    return {
        kind: {
            phase: Durations(median=round(median(values), 2), maximum=max(values)) for phase, values in phases.items()
        }
        for kind, phases in kinds.items()
    }


def _check(name: str, problems: list[str], text: str, prefix: str = "") -> Check:
    return Check(name=name, ok=not problems, text=prefix + "; ".join(problems) if problems else text)


def _check_faults(report: Report, recoveries: Sequence[Recovery]) -> Check:
    ended_none = [each.fault for each in recoveries if each.attempt is None and ends_attempt(each.fault)]
    text = f"{quantity(len(recoveries), 'fault')} injected"
    return _check("faults", [*report.faults_without_effect, *ended_none], text, "without effect: ")


def _compare(records: RunRecords, reference: Sequence[MetricLine]) -> list[Check]:
    """Compare losses and order of samples with the reference, step by step."""
    lines = {line.step: line for line in records.final_lines}
    lost = _lost_lines(records)
    checks = []
    for name, fields in (("losses", ("loss", "validation_loss")), ("data order", ("consumed",))):
        pairs = [
            (line.step, *(tuple(getattr(each, field) for field in fields) for each in (lines[line.step], line)))
            for line in reference
            if line.step in lines
        ]
        different = next((pair for pair in pairs if pair[1] != pair[2]), None)
        is_complete = bool(lines) and len(pairs) + len(lost) == len(reference)
        if different is not None:
            text = f"step {different[0]}: {different[1]}, undisturbed {different[2]}"
        elif not is_complete:
            text = f"{len(pairs)} of {quantity(len(reference), 'step')}"
        else:
            text = f"{quantity(len(pairs), 'step')} as in the undisturbed run"
            text += f"; metrics of {quantity(len(lost), 'step')} were lost with their node" if lost else ""
        checks.append(Check(name=name, ok=different is None and is_complete, text=text))
    return checks


def _lost_lines(records: RunRecords) -> set[int]:
    """Return the steps whose metric lines a lost node had not uploaded, although its state was copied to another."""
    lost = set[int]()
    for decision in records.decisions:
        before = [line.step for line in records.lines if line.attempt <= decision.attempt]
        after = [line.step for line in records.lines if line.attempt > decision.attempt]
        if before and after and replaced_nodes(decision):
            lost.update(range(max(before) + 1, min(after)))
    return lost


def _check_saved_steps(recoveries: Sequence[Recovery]) -> Check:
    lost = [f"{each.fault}: {quantity(each.lost_saved_steps, 'step')}" for each in recoveries if each.lost_saved_steps]
    repeated = sum(each.repeated_steps for each in recoveries)
    return _check("saved steps", lost, f"{repeated} repeated, 0 of them in a checkpoint", "lost from checkpoints: ")


def _check_usage(usage: InstanceUsage | None) -> Check:
    if usage is None:
        return Check(name="billed time", ok=False, text="no worker was launched, or not all are terminated")
    share = usage.unexplained_share
    text = f"{usage.billed_seconds:.0f} instance-seconds billed, {share:.1%} without a known use"
    return Check(name="billed time", ok=abs(share) <= MAX_UNEXPLAINED_SHARE, text=text)


def _check_goodput(usage: InstanceUsage | None, minimum: float) -> Check:
    goodput = usage.goodput if usage else 0.0
    required = f", at least {minimum:.0%} required" if minimum else ""
    return Check(name="goodput", ok=goodput >= minimum, text=f"{goodput:.1%}{required}")


def print_report(report: ChaosReport, console: Console) -> None:
    """Print checks, recoveries and usage as tables."""
    console.print(recovery_table(report.recoveries))
    if report.usage is not None:
        table = Table("use", "instance-seconds", "share")
        for name, used in report.usage.seconds.items():
            table.add_row(name, f"{used:.1f}", f"{used / report.usage.billed_seconds:.1%}")
        table.add_row("billed", f"{report.usage.billed_seconds:.1f}", style="bold")
        console.print(table)
    for check in report.checks:
        state = "[green]ok[/green]    " if check.ok else "[red]failed[/red]"
        console.print(state, end=" ")
        console.print(f"{check.name}: {check.text.splitlines()[0]}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"seed {report.seed}", highlight=False)
    console.print("[green]ok[/green]" if report.ok else "[red]failed[/red]")
