"""The report of `trainyard selftest`: JSON, and Markdown next to it."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.operations.destroy import ExistingResource
from trainyard.operations.selftest.plan import Action
from trainyard.operations.selftest.redaction import PrivateText, redact

SEND_TO = "Attach this report to an issue in the repository from which you cloned Trainyard."
Status = Literal["passed", "failed", "no_capacity", "not_run"]


class ActionResult(StrictModel):
    """Result of one action."""

    step: str = Field(description="Step of docs/first-real-run.md, with instance type and purchase option.")
    action: Action = Field(description="Command or awaited state, and expected result.")
    status: Status = Field(description="Result. no_capacity: AWS had no capacity, and the stack reported it.")
    seconds: float = Field(0.0, ge=0, description="Duration.")
    errors: tuple[str, ...] = Field((), description="Error lines.")
    progress: tuple[str, ...] = Field((), description="Progress lines, with the zones that a launch tried.")
    facts: tuple[str, ...] = Field((), description="Phases and nodes of a launch, and other facts.")


class SelftestReport(StrictModel, frozen=False):
    """`trainyard selftest --json`, and its report file. It is written after each action."""

    ok: bool = Field(False, description="Whether all actions passed and the stack is destroyed.")
    interrupted: bool = Field(False, description="Whether a signal ended the selftest.")
    destroyed: bool = Field(False, description="Whether nothing exists at the end except what is retained.")
    stack: str = Field(description="Pulumi stack.")
    region: str = Field(description="AWS region.")
    started: str = Field(description="Start, UTC.")
    versions: dict[str, str] = Field(description="Program or package -> version.")
    results: tuple[ActionResult, ...] = Field((), description="Results of the actions in their order.")
    retained: tuple[ExistingResource, ...] = Field((), description="Data bucket and key, which are kept.")
    remaining: tuple[ExistingResource, ...] = Field((), description="Other resources that exist at the end.")
    errors: tuple[str, ...] = Field((), description="Errors outside the actions, such as a failed audit.")
    estimated_usd: float = Field(0.0, ge=0, description="Cost at list prices if all nodes ran in all actions, USD.")
    maximum_usd: float = Field(ge=0, description="Maximum cost that was confirmed, USD.")
    send_to: str = Field(SEND_TO, description="Where to send the report.")


def write_report(report: SelftestReport, file: Path, private: Iterable[PrivateText]) -> SelftestReport:
    """Write the redacted report as JSON to `file` and as Markdown next to it; return the redacted report."""
    redacted = SelftestReport.model_validate(redact(report.model_dump(mode="json"), private))
    file.write_text(redacted.model_dump_json(indent=2) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text("\n".join(format_markdown(redacted)) + "\n", encoding="utf-8")
    return redacted


def format_summary(report: SelftestReport) -> list[str]:
    """Format the result for people."""
    steps = [f"{each.status:<11} {each.seconds:6.0f} s  {each.step}: {each.action.command}" for each in report.results]
    leftovers = [f"{name}: {each}" for name in ("retained", "remaining") for each in getattr(report, name)]
    cost = f"cost: less than {report.estimated_usd:.2f} USD at list prices; the limit was {report.maximum_usd:.2f} USD"
    return [f"stack {report.stack} in {report.region}, {report.started}", *steps, *report.errors, *leftovers, cost]


def format_markdown(report: SelftestReport) -> list[str]:
    """Format the report as Markdown."""
    title = "interrupted" if report.interrupted else "passed" if report.ok else "not passed"
    lines = [f"# trainyard selftest: {title}", "", "```text", *format_summary(report), "```", ""]
    lines += [f"- {name}: {version}" for name, version in report.versions.items()]
    for number, each in enumerate(report.results, 1):
        if texts := (*each.errors, *each.facts, *each.progress):
            lines += ["", f"## {number}. {each.step}: `{each.action.command}`: {each.status}", ""]
            lines += [f"Expected: {each.action.expectation}.", "", "```text", *texts, "```"]
    return [*lines, "", report.send_to]
