"""The end of a rehearsal, for people (a table) and for machines (report.json)."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Column, Table

from trainyard.models.report import Billed, Report


def write(report: Report, folder: Path) -> Path:
    file = folder / "report.json"
    file.write_text(report.model_dump_json(indent=1) + "\n")
    return file


def show(report: Report, console: Console) -> None:
    """Phases, resources, loss, objects in S3: what a person wants to know first. The rest is in the report."""
    console.print(f"stack {report.stack}, run {report.run or 'none'}", highlight=False, soft_wrap=True)
    phases = Table("phase", "seconds")
    for name, seconds in report.phases.items():
        phases.add_row(name, f"{seconds:.1f}")
    phases.add_row("sum", f"{sum(report.phases.values()):.1f}", style="bold")
    console.print(phases)
    facts = Table(Column(), Column(overflow="fold"), show_header=False)
    made = f"{report.resources_created} made, {report.resources_deleted} deleted, {len(report.retained)} retained"
    facts.add_row("AWS resources", made)
    facts.add_row("retained", retained_in_words(report.retained))
    if report.images:
        facts.add_row("baked images", " ".join(report.images))
    facts.add_row("leaked", "\n".join(f"{one.service} {one.kind} {one.id}" for one in report.leaked) or "none")
    facts.add_row("billed", billed_in_words(report.billed))
    if report.faults:
        facts.add_row("faults", "\n".join(report.faults), style="yellow")
    facts.add_row("nodes", f"{report.nodes} nodes x {report.processes_per_node} processes")
    if report.last_loss is not None and report.first_loss is not None:
        share = report.last_loss / report.first_loss
        told = f"{report.first_loss:.4f} -> {report.last_loss:.4f} ({share:.2f} of the first), {report.steps} steps"
        facts.add_row("loss", told)
        facts.add_row("checkpoints", "\n".join(report.checkpoints) or "none")
    facts.add_row("objects in S3", ", ".join(f"{kind}: {count}" for kind, count in report.objects.items()) or "none")
    facts.add_row("results", report.results_uri or "none")
    console.print(facts)
    differing = len(report.scaled) + len(report.not_rehearsed)
    console.print(f"{differing} things are not as on AWS here: scaled and not_rehearsed in the report", highlight=False)
    for error in report.errors:
        console.print("error", style="red", end=" ")
        console.print(error, highlight=False, markup=False, soft_wrap=True)
    console.print("[green]ok[/green]" if report.ok else "[red]failed[/red]")


def billed_in_words(billed: Iterable[Billed]) -> str:
    """Instance-seconds, one line a type."""
    return "\n".join(f"{one.instances} x {one.type}, {one.seconds:.0f} instance-seconds" for one in billed) or "none"


def retained_in_words(retained: tuple[str, ...]) -> str:
    """What is kept, one line a thing: its id, and how many resources of the program it is made of."""
    ids = Counter(item.rsplit(" ", 1)[-1] for item in retained)
    return "\n".join(f"{name} ({count} resources)" for name, count in ids.items()) or "none"
