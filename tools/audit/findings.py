"""Findings of bandit and checkov, and the accepted ones in accepted.yaml."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml

ACCEPTED = Path(__file__).parent / "accepted.yaml"


@dataclass(frozen=True, order=True)
class Finding:
    """A failed check. `place`: file, or address of a resource."""

    check: str
    place: str
    text: str


@dataclass(frozen=True)
class Accepted:
    """Findings of one check that are accepted. `places`: patterns of files or resources."""

    check: str
    places: tuple[str, ...]
    reason: str


def read_accepted(file: Path = ACCEPTED) -> list[Accepted]:
    """Return the entries of accepted.yaml. Raises ValueError for an entry without a reason."""
    entries = [Accepted(**{**entry, "places": tuple(entry["places"])}) for entry in yaml.safe_load(file.read_text())]
    if without := [entry.check for entry in entries if not entry.reason]:
        raise ValueError(f"{file.name}: {', '.join(without)} has no reason")
    return entries


def bandit_findings(report: str) -> Iterator[Finding]:
    """Yield the findings in bandit's JSON report. Raises ValueError if it could not read a file."""
    content = json.loads(report)
    if content["errors"]:
        raise ValueError(f"bandit: {content['errors']}")
    for result in content["results"]:
        yield Finding(result["test_id"], result["filename"], f"line {result['line_number']}: {result['issue_text']}")


def checkov_findings(report: str, addresses: Sequence[str]) -> Iterator[Finding]:
    """Yield the failed checks in checkov's JSON report.

    `addresses`: of the resources in all plans. Raises ValueError if checkov has read another number of resources: a
    plan that it does not recognize has no findings.
    """
    content: dict[str, Any] = json.loads(report)
    read = content.get("summary", content).get("resource_count", 0)
    if read != len(addresses):
        raise ValueError(f"checkov has read {read} resources, but the plans have {len(addresses)}")
    for check in content["results"]["failed_checks"]:
        yield Finding(check["check_id"], check["resource"], check["check_name"])


def checked_types(report: str) -> dict[str, int]:
    """Return the number of resources of each type to which checkov has applied a check."""
    results = json.loads(report)["results"]
    checks = [*results["passed_checks"], *results["failed_checks"]]
    resources = {(check["file_path"], check["resource"]) for check in checks}
    types = sorted(resource.partition(".")[0] for _, resource in resources)
    return {kind: types.count(kind) for kind in dict.fromkeys(types)}


def compare(findings: Iterable[Finding], accepted: Sequence[Accepted]) -> list[str]:
    """Return messages on findings that are not accepted, and on accepted places without a finding."""
    messages, used = [], set()
    for finding in sorted(set(findings)):
        matches = [
            (entry.check, place)
            for entry in accepted
            if entry.check == finding.check
            for place in entry.places
            if fnmatch(finding.place, place)
        ]
        used.update(matches)
        if not matches:
            messages.append(f"{finding.check} {finding.place}: {finding.text}")
    unused = ((entry.check, place) for entry in accepted for place in entry.places if (entry.check, place) not in used)
    messages += [f"{check} {place}: accepted in {ACCEPTED.name}, but not reported" for check, place in unused]
    return messages
