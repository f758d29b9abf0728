"""The end of a rehearsal, for people (a table) and for machines (report.json)."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from contract.report import Report


def write(report: Report, folder: Path) -> Path:
    file = folder / "report.json"
    file.write_text(report.model_dump_json(indent=1) + "\n")
    return file


def show(report: Report, console: Console) -> None:
    """Phases, resources, loss, objects in S3, and what this machine could not show."""
    phases = Table("phase", "seconds", title=f"stack {report.stack}, run {report.run or 'none'}", title_justify="left")
    for name, seconds in report.phases.items():
        phases.add_row(name, f"{seconds:.1f}")
    phases.add_row("sum", f"{sum(report.phases.values()):.1f}", style="bold")
    console.print(phases)
    facts = Table(show_header=False)
    facts.add_row("resources", f"{report.resources_created} made, {report.resources_deleted} deleted")
    facts.add_row("retained", "\n".join(report.retained) or "none")
    facts.add_row("leaked", "\n".join(f"{one.service} {one.kind} {one.id}" for one in report.leaked) or "none")
    facts.add_row("nodes", f"{report.nodes} x {report.processes_per_node} processes")
    if report.last_loss is not None and report.first_loss is not None:
        share = report.last_loss / report.first_loss
        facts.add_row("loss", f"{report.first_loss:.4f} -> {report.last_loss:.4f} ({share:.2f}), {report.steps} steps")
    facts.add_row("objects in S3", ", ".join(f"{count} {kind}" for kind, count in report.objects.items()) or "none")
    facts.add_row("checkpoints", "\n".join(report.checkpoints) or "none")
    facts.add_row("results", report.results_uri or "none")
    console.print(facts)
    limits = Table("not as on AWS", "here", "why")
    for scaled in report.scaled:
        limits.add_row(scaled.what, scaled.by, scaled.why)
    for left_out in report.not_rehearsed:
        limits.add_row(left_out.what, "not rehearsed", left_out.why)
    console.print(limits)
    for error in report.errors:
        console.print("error", style="red", end=" ")
        console.print(error, highlight=False, markup=False, soft_wrap=True)
    console.print("[green]ok[/green]" if report.ok else "[red]failed[/red]")
