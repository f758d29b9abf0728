"""Writes the report: report.json for programs, a table on the terminal for people."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from rehearsal.recovery import PHASES
from trainyard.models.report import Billed, CapacityAttempt, Recovery, Report
from trainyard.models.saved import SavedItem
from trainyard.operations.saved import describe_size
from trainyard.quantity import quantity
from trainyard.terminal import escape_control_characters

REPORT_FILE = "report.json"


def write_report(report: Report, folder: Path) -> Path:
    """Write report.json to the folder. Returns its path."""
    file = folder / REPORT_FILE
    file.write_text(report.model_dump_json(indent=1) + "\n")
    return file


def print_report(report: Report, console: Console) -> None:
    """Print phases, resources, loss and S3 objects as tables. report.json has the other values."""
    console.print(f"stack {report.stack}, run {report.run or 'none'}", highlight=False, soft_wrap=True)
    phases = Table("phase", "seconds")
    for name, seconds in report.phases.items():
        phases.add_row(name, f"{seconds:.1f}")
    phases.add_row("total", f"{sum(report.phases.values()):.1f}", style="bold")
    console.print(phases)
    facts = Table(Column(), Column(overflow="fold"), show_header=False)
    created = f"{report.resources_created} created, {report.resources_deleted} deleted, {len(report.retained)} retained"
    facts.add_row("AWS resources", created)
    facts.add_row("retained", describe_retained(report.retained))
    if report.images:
        facts.add_row("baked images", " ".join(report.images))
    leaked = "\n".join(f"{resource.service} {resource.kind} {resource.id}" for resource in report.leaked)
    facts.add_row("leaked", leaked or "none")
    facts.add_row("capacity", describe_attempts(report.capacity_attempts))
    facts.add_row("billed", describe_billed(report.billed))
    if report.unused_reservations:
        facts.add_row("reserved, unused", describe_billed(report.unused_reservations))
    if report.faults:
        facts.add_row("faults", "\n".join(report.faults), style="yellow")
    if report.faults_without_effect:
        facts.add_row("without effect", "\n".join(report.faults_without_effect), style="red")
    facts.add_row("nodes", f"{quantity(report.nodes, 'node')} x {quantity(report.processes_per_node, 'process')}")
    if report.last_loss is not None and report.first_loss is not None:
        share = report.last_loss / report.first_loss
        loss = f"{report.first_loss:.4f} -> {report.last_loss:.4f} ({share:.2f} of the first), {report.steps} steps"
        facts.add_row("loss", loss)
    facts.add_row("S3 objects", ", ".join(f"{kind}: {count}" for kind, count in report.objects.items()) or "none")
    facts.add_row("checkpoints", describe_saved(report.checkpoints))
    facts.add_row("results", describe_saved(report.results))
    console.print(facts)
    if report.recoveries:
        console.print(recovery_table(report.recoveries))
        console.print(f"{quantity(report.replacements, 'replacement')} launched", highlight=False)
    differences = len(report.substitutions) + len(report.not_rehearsed)
    text = f"{quantity(differences, 'difference')} from AWS: see `substitutions` and `not_rehearsed` in report.json"
    console.print(text, highlight=False)
    for error in report.errors:  # the terminal has the lines that follow
        first, _, others = escape_control_characters(error).partition("\n")
        console.print("error", style="red", end=" ")
        console.print(f"{first} (see above)" if others else first, highlight=False, markup=False, soft_wrap=True)
    console.print("[green]ok[/green]" if report.ok else "[red]failed[/red]")


def recovery_table(recoveries: Iterable[Recovery]) -> Table:
    """Return a table with the phases of each recovery in seconds, and the repeated steps."""
    headings = [f"{heading} s" for heading in PHASES.values()]
    table = Table(Column("fault", overflow="fold"), *headings, "repeated")
    for each in recoveries:
        cells = ["-" if value is None else f"{value:.1f}" for value in (getattr(each, phase) for phase in PHASES)]
        longest = "" if each.longest_step_seconds is None else f", longest step {each.longest_step_seconds:.1f} s"
        table.add_row(each.fault, *cells, str(each.repeated_steps) if each.attempt else f"job continued{longest}")
    return table


def describe_saved(items: Sequence[SavedItem]) -> str:
    """Return the S3 prefix of checkpoints or results, and one line per item."""
    if not items:
        return "none"
    names = (f"  {escape_control_characters(item.name)}, {describe_size(item)}" for item in items)
    return "\n".join([items[0].parent_uri, *names])


def describe_attempts(attempts: Iterable[CapacityAttempt]) -> str:
    """Return one line per result of requests for capacity."""
    lines = []
    for attempt in attempts:
        action = "launched" if attempt.kind == "launch" else "reserved"
        times = f" ({quantity(attempt.times, 'request')} with this result)" if attempt.times > 1 else ""
        error = f": {attempt.error_code}" if attempt.error_code else ""
        lines.append(
            f"{action} {attempt.granted} of {attempt.requested} x {attempt.type} in {attempt.zone}{error}{times}"
        )
    return "\n".join(lines) or "not requested"


def describe_billed(billed: Iterable[Billed]) -> str:
    """Return the instance-seconds, one line per instance type, zone and purchase option."""
    lines = [
        f"{entry.instances} x {entry.type} in {entry.zone}, {entry.seconds:.0f} instance-seconds, "
        f"{entry.purchase_option}{' (paid in advance)' if entry.purchase_option == 'capacity-block' else ''}"
        for entry in billed
    ]
    return "\n".join(lines) or "none"


def describe_retained(retained: tuple[str, ...]) -> str:
    """Return one line per retained AWS id, with the number of Pulumi resources that have this id."""
    ids = Counter(item.rsplit(" ", 1)[-1] for item in retained)
    return "\n".join(f"{name} ({quantity(count, 'resource')})" for name, count in ids.items()) or "none"
