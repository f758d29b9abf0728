"""The report of `trainyard selftest`: JSON, and Markdown next to it. It is redacted, because it is sent to others."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from trainyard.base import StrictModel

SEND_TO = "Attach this report to an issue in the issue tracker of the project."
Status = Literal["passed", "failed", "no_capacity", "not_run"]


class NodeFacts(StrictModel):
    """A worker of a launch. Times are seconds after EC2 launched the instance; none: not reported."""

    instance: str = Field(description="EC2 instance id.")
    instance_type: str = Field(description="EC2 instance type.")
    zone: str = Field(description="Availability Zone.")
    market: str = Field(description="spot, or on-demand.")
    reservation: str | None = Field(description="Capacity reservation in which it runs.")
    spot_request: str | None = Field(description="Id and status code of its Spot request.")
    first_event_seconds: float | None = Field(description="Until the node playbook started.")
    configured_seconds: float | None = Field(description="Until the node playbook succeeded.")
    job_seconds: float | None = Field(description="Until the job's processes ran.")


class ReservationFacts(StrictModel):
    """A capacity reservation of a launch, when the launch had returned."""

    id: str = Field(description="Id of the capacity reservation.")
    state: str = Field(description="State, such as active.")
    zone: str = Field(description="Availability Zone.")
    instances: int = Field(ge=0, description="Reserved instances.")
    available: int = Field(ge=0, description="Instances that no node uses.")


class LaunchFacts(StrictModel):
    """What a launch started."""

    run: str = Field(description="Run id.")
    phases: dict[str, float] = Field(description="Phase of the launch -> seconds.")
    nodes: tuple[NodeFacts, ...] = Field(description="Its workers.")
    reservations: tuple[ReservationFacts, ...] = Field(description="Its capacity reservations.")


class Step(StrictModel):
    """One step of a run."""

    run: str = Field(description="Run of docs/first-real-run.md.")
    command: str = Field(description="Command, or the state that is awaited.")
    expectation: str = Field(description="Expected result.")
    proves: str = Field(description="What a success proves.")
    status: Status = Field(description="Result. no_capacity: AWS had no capacity, and the stack reported it.")
    seconds: float = Field(0.0, ge=0, description="Duration.")
    errors: tuple[str, ...] = Field((), description="Error lines.")
    progress: tuple[str, ...] = Field((), description="Progress lines of the launch, with the zones that it tried.")
    launch: LaunchFacts | None = Field(None, description="The launch of a successful `pulumi up`.")


class Leftover(StrictModel):
    """A resource that exists at the end."""

    kind: str = Field(description="Service and kind, such as ec2:instance.")
    id: str = Field(description="Id or name.")
    state: str = Field(description="State; empty for kinds without one.")
    retained: bool = Field(description="Whether `trainyard destroy` retains it.")
    price: str = Field(description="List price.")
    command: str = Field(description="Command that ends it.")


class SelftestReport(StrictModel):
    """`trainyard selftest --json`, and its report file."""

    ok: bool = Field(description="Whether all steps passed and nothing remains except what is retained.")
    interrupted: bool = Field(description="Whether a signal ended the selftest.")
    stack: str = Field(description="Pulumi stack.")
    region: str = Field(description="AWS region.")
    started: str = Field(description="Start, UTC.")
    versions: dict[str, str] = Field(description="Program or package -> version.")
    steps: tuple[Step, ...] = Field(description="Steps in their order.")
    leftovers: tuple[Leftover, ...] = Field(description="Resources that exist at the end.")
    errors: tuple[str, ...] = Field((), description="Errors outside the steps, such as a failed audit.")
    estimated_usd: float = Field(ge=0, description="Estimated cost at list prices, USD.")
    maximum_usd: float = Field(ge=0, description="Maximum cost that was confirmed, USD.")
    send_to: str = Field(SEND_TO, description="Where to send the report.")


_PRIVATE_NAMES = r"[\w.-]*(?:secret|password|passphrase|token(?!s)|credential)[\w.-]*"
_PATTERNS = (
    # ARNs of IAM and STS end in the name of a user, role or session.
    (r"\barn:aws[\w-]*:(iam|sts)::\d{12}:([\w-]+)/[^\s\"',)\]]+", r"arn:aws:\1::<account>:\2/<name>"),
    (r"(?<![\w-])\d{12}(?![\w-])", "<account>"),
    (r"\b(?:AKIA|ASIA|AIDA|AROA)[A-Z0-9]{12,}\b", "<access-key>"),
    (rf"(?i)({_PRIVATE_NAMES}[\"']?\s*[:=]\s*[\"']?)[^\s\"',]+", r"\1<secret>"),
    (r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+", "<email>"),
    (r"\bip-\d{1,3}(?:-\d{1,3}){3}\b", "<ip>"),
    (r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\w)", "<ip>"),
    (r"(?i)(?<![\w:])(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}(?![\w:])", "<ip>"),
    (r"(?i)(?<![\w:])(?:[0-9a-f]{1,4}:){1,6}(?::[0-9a-f]{1,4}){1,6}(?![\w:])", "<ip>"),
    (r"(/home/|/Users/)[^/\s:\"']+", r"\1<user>"),
)


class Redactor:
    """Replaces account ids, user names, e-mail and IP addresses and secrets in texts.

    `private`: texts of this machine and account that are replaced wherever they occur -> their replacements.
    """

    def __init__(self, private: Iterable[tuple[str, str]] = ()) -> None:
        # Longest first, because one may contain another.
        texts = sorted(((re.escape(text), name) for text, name in private if text), key=lambda pair: -len(pair[0]))
        self._patterns = [
            *((re.compile(rf"(?<!\w){text}(?!\w)"), name) for text, name in texts),
            *((re.compile(pattern), replacement) for pattern, replacement in _PATTERNS),
        ]

    def text(self, text: str) -> str:
        """Return the redacted text."""
        for pattern, replacement in self._patterns:
            text = pattern.sub(replacement, text)
        return text

    def value(self, value: Any) -> Any:
        """Return a JSON value with all texts in it redacted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.value(each) for key, each in value.items()}
        return [self.value(each) for each in value] if isinstance(value, list) else value


def write_report(report: SelftestReport, file: Path, redactor: Redactor) -> SelftestReport:
    """Write the redacted report as JSON to `file` and as Markdown next to it; return the redacted report."""
    redacted = SelftestReport.model_validate_json(json.dumps(redactor.value(report.model_dump(mode="json"))))
    file.write_text(redacted.model_dump_json(indent=2) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text("\n".join(format_markdown(redacted)) + "\n", encoding="utf-8")
    return redacted


def format_markdown(report: SelftestReport) -> list[str]:
    """Format the report as Markdown."""
    result = "interrupted" if report.interrupted else "passed" if report.ok else "not passed"
    lines = [f"# trainyard selftest: {result}", ""]
    lines.append(f"Stack {report.stack} in {report.region}, started {report.started}.")
    lines.append(f"Estimated cost {report.estimated_usd:.2f} USD at list prices, maximum {report.maximum_usd:.2f} USD.")
    lines += ["", "| program | version |", "| --- | --- |"]
    lines += [f"| {name} | {version} |" for name, version in report.versions.items()]
    lines += ["", "| run | step | expected | result | seconds |", "| --- | --- | --- | --- | --- |"]
    for step in report.steps:
        lines.append(f"| {step.run} | `{step.command}` | {step.expectation} | {step.status} | {step.seconds:.0f} |")
    for number, step in enumerate(report.steps, 1):
        if step.status != "not_run":
            lines += _format_step(number, step)
    lines += ["", "## Resources that exist", ""]
    lines += [f"- {line}" for line in format_leftovers(report.leftovers)] or ["None."]
    lines += ["", *report.errors, *([""] if report.errors else []), report.send_to]
    return lines


def _format_step(number: int, step: Step) -> list[str]:
    lines = ["", f"## {number}. Run {step.run}: `{step.command}`: {step.status}", "", f"It proves: {step.proves}."]
    if step.launch:
        lines.append("")
        lines += [f"- {name}: {seconds:.0f} s" for name, seconds in step.launch.phases.items()]
        lines += [f"- {_format_facts(each)}" for each in (*step.launch.reservations, *step.launch.nodes)]
    for texts in (step.progress, step.errors):
        if texts:
            lines += ["", "```text", *texts, "```"]
    return lines


def _format_facts(facts: StrictModel) -> str:
    values = facts.model_dump()
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def format_leftovers(leftovers: Iterable[Leftover]) -> list[str]:
    """Format each resource that exists, with its price and the command that ends it."""
    return [
        f"{'retained' if each.retained else 'remaining'}: {each.kind} {each.id}"
        f"{f' ({each.state})' if each.state else ''}, {each.price}; to end it: {each.command}"
        for each in leftovers
    ]


def format_summary(report: SelftestReport, file: Path) -> list[str]:
    """Format the result for people."""
    lines = [f"run {step.run}: {step.status:<11} {step.seconds:6.0f} s  {step.command}" for step in report.steps]
    lines += [*report.errors, *format_leftovers(report.leftovers)]
    lines.append(f"estimated cost: {report.estimated_usd:.2f} USD at list prices")
    return [*lines, f"report: {file} and {file.with_suffix('.md')}", report.send_to]
