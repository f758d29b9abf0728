"""What must be true when a rehearsal is over, looked up in the account and in S3, never taken from what was intended.

Each check returns sentences, one for everything that is not as it should be; none when all is well.
"""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from rehearsal.aws.control_models import Resource
from rehearsal.aws.journal import JournalEntry
from trainyard.aws import tags
from trainyard.aws.s3 import Bucket, client
from trainyard.models.layout import RunLayout
from trainyard.models.metrics import MetricLine, Results
from trainyard.models.report import LostResource
from trainyard.models.streams import metric_lines

_ROOT = Path(__file__).parents[1]
CHECK_SECONDS = 120


@dataclass(frozen=True)
class Losses:
    """Of the built-in trainer's metrics in S3."""

    began: int
    first: float
    last: float
    steps: int


def read_losses(data: Bucket, run: str) -> Losses | None:
    """First and last metric line of a run; None where it left none."""
    lines: list[MetricLine] = metric_lines(data, run)
    return Losses(lines[0].step, lines[0].loss, lines[-1].loss, lines[-1].step) if lines else None


def check_results(data: Bucket, run: str, losses: Losses | None) -> list[str]:
    """results.json says what the metric lines say: two ways of the same figures through different code."""
    content = data.find(f"{RunLayout(run).results}results.json")
    if content is None:
        return [f"results.json of run {run} is not in S3"]
    if losses is None:
        return [f"run {run} left no metric line in S3"]
    try:
        results = Results.model_validate_json(content)
    except ValidationError as error:
        return [f"results.json of run {run} is not what it should be: {error}"]
    # A run that resumed another one carries the first loss of that one's first step.
    first = results.first_loss if losses.began == 1 else losses.first
    told, seen = (first, results.last_loss, results.steps), (losses.first, losses.last, losses.steps)
    if told == seen:
        return []
    return [f"results.json has first loss, last loss, steps {told}, the metric lines in S3 have {seen}"]


def check_checkpoints(uris: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    """Load each checkpoint in a fresh process."""

    def load(uri: str) -> list[str]:
        try:
            return verdict(uri)
        except (subprocess.TimeoutExpired, ValueError, LookupError) as error:
            return [f"checkpoint {uri} does not load: {type(error).__name__}: {error}"]

    def verdict(uri: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "trainer.check", uri],
            cwd=_ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS,
            check=False,
        )
        if done.returncode == 0 and json.loads(done.stdout.splitlines()[-1])["loadable"]:
            return []
        return [f"checkpoint {uri} does not load: {(done.stderr or done.stdout).strip()[-500:]}"]

    with ThreadPoolExecutor(2) as pool:
        return [problem for problems in pool.map(load, uris) for problem in problems]


def baked_images(region: str, stack: str) -> list[str]:
    """The images that were baked for the stack, each with its snapshots: they are wanted, and outlive the cluster."""
    filters = [
        {"Name": f"tag:{tags.STACK}", "Values": [stack]},
        {"Name": f"tag:{tags.ROLE}", "Values": [tags.IMAGE]},
    ]
    found = []
    for image in client("ec2", region).describe_images(Owners=["self"], Filters=filters)["Images"]:
        devices = [device["Ebs"]["SnapshotId"] for device in image["BlockDeviceMappings"] if "Ebs" in device]
        found += [image["ImageId"], *devices]
    return found


def leaked(before: Iterable[Resource], after: Iterable[Resource], retained: Iterable[str]) -> list[LostResource]:
    """What is in the account after destroy and was not before, less what destroy keeps on purpose (by id)."""
    kept = set(retained)
    known = {(one.service, one.kind, one.id) for one in before}
    return [
        LostResource(service=one.service, kind=one.kind, id=one.id)
        for one in after
        if (one.service, one.kind, one.id) not in known and one.names.isdisjoint(kept)
    ]


def check_rights(journal: Iterable[JournalEntry], roles: Collection[str]) -> list[str]:
    """None of these roles was refused anything: a node that works around a missing right hides it.

    One line for each right. Roles of others may share the account, and lose their rights in their own time.
    """
    refused = {
        entry.error_message or f"{entry.service}:{entry.operation}"
        for entry in journal
        if entry.role in roles and (entry.status == 403 or (entry.error_code or "").startswith("AccessDenied"))
    }
    return [f"refused: {message}" for message in sorted(refused)]


def check_journal(made: Mapping[str, str], journal: Iterable[JournalEntry], adapter_key: str) -> list[str]:
    """Each resource made (urn -> name) has a successful mutating call, and the adapter made none for nobody."""
    problems, served = [], set()
    for entry in journal:
        if not entry.mutating or entry.status >= 400:
            continue
        if entry.urn is not None:
            served.add(entry.urn)
        elif entry.access_key == adapter_key:
            problems.append(f"{entry.service}:{entry.operation} (call {entry.seq}) was made for no resource")
    problems += [
        f"{name} was reported as made, but no call of it is in the journal"
        for urn, name in made.items()
        if urn not in served
    ]
    return problems
