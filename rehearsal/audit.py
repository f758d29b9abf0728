"""Checks after a rehearsal. They read the account and S3, and compare them with the reported values.

Each check returns a list of error messages, which is empty when there are no problems.
"""

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from rehearsal.aws.control_models import Resource
from rehearsal.aws.journal import JournalEntry
from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.aws.s3 import Bucket
from trainyard.models.layout import RunLayout
from trainyard.models.metrics import MetricLine, Results
from trainyard.models.report import LeakedResource
from trainyard.models.streams import metric_lines

_ROOT = Path(__file__).parents[1]
CHECKPOINT_TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Losses:
    """First and last loss of a run, from its metric lines in S3. `first_step`: step of the first metric line."""

    first_step: int
    first: float
    last: float
    steps: int


def read_losses(data: Bucket, run: str) -> Losses | None:
    """Return the losses of a run; None when it wrote no metric lines."""
    return find_losses(metric_lines(data, run))


def find_losses(lines: Sequence[MetricLine]) -> Losses | None:
    """Return the losses of metric lines in order of their steps; None without lines."""
    return Losses(lines[0].step, lines[0].loss, lines[-1].loss, lines[-1].step) if lines else None


def check_results(data: Bucket, run: str, losses: Losses | None) -> list[str]:
    """Check that results.json has the values of the metric lines, which are written by different code."""
    content = data.find(f"{RunLayout(run).results}results.json")
    if content is None:
        return [f"results.json of run {run} is not in S3"]
    if losses is None:
        return [f"run {run} has no metric lines in S3"]
    try:
        results = Results.model_validate_json(content)
    except ValidationError as error:
        return [f"results.json of run {run} is invalid: {error}"]
    # A resumed run reports the first loss of the run that it resumes.
    first = results.first_loss if losses.first_step == 1 else losses.first
    reported, measured = (first, results.last_loss, results.steps), (losses.first, losses.last, losses.steps)
    if reported == measured:
        return []
    return [f"first loss, last loss and steps are {reported} in results.json, but {measured} in the metric lines"]


def check_checkpoints(uris: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Load all checkpoints in one new process, with additional environment variables. Returns the problems."""
    try:
        process = subprocess.run(
            [sys.executable, "-m", "trainer.check_checkpoint", *uris],
            cwd=_ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=CHECKPOINT_TIMEOUT_SECONDS * max(len(uris), 1),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return [f"checkpoint {uri} does not load: {error}" for uri in uris]
    lines = [line for line in process.stdout.splitlines() if line.startswith("{")]  # libraries may print other lines
    results = {result["uri"].rstrip("/"): result for result in map(json.loads, lines)}
    problems = []
    for uri in uris:
        result = results.get(uri.rstrip("/"), {"loadable": False, "error": process.stderr.strip()[-500:]})
        if not result["loadable"]:
            problems.append(f"checkpoint {uri} does not load: {result['error']}")
    return problems


def baked_images(region: str, stack_tag: str) -> list[str]:
    """Return the ids of the AMIs that were baked for a stack, and of their snapshots."""
    filters = [
        {"Name": f"tag:{tags.STACK}", "Values": [stack_tag]},
        {"Name": f"tag:{tags.ROLE}", "Values": [tags.IMAGE]},
    ]
    ids = []
    for image in client("ec2", region).describe_images(Owners=["self"], Filters=filters)["Images"]:
        snapshots = [device["Ebs"]["SnapshotId"] for device in image["BlockDeviceMappings"] if "Ebs" in device]
        ids += [image["ImageId"], *snapshots]
    return ids


def leaked_resources(
    before: Iterable[Resource], after: Iterable[Resource], retained: Iterable[str]
) -> list[LeakedResource]:
    """Return the resources that exist after destroy but not before, except the retained ids."""
    retained_ids = set(retained)
    earlier = {(resource.service, resource.kind, resource.id) for resource in before}
    return [
        LeakedResource(service=resource.service, kind=resource.kind, id=resource.id)
        for resource in after
        if (resource.service, resource.kind, resource.id) not in earlier and resource.names.isdisjoint(retained_ids)
    ]


def check_permissions(journal: Iterable[JournalEntry], roles: Collection[str]) -> list[str]:
    """Check that no API call of these roles was denied: a node may retry and hide a missing permission.

    Returns one message per denied permission. Roles of other stacks in the account are ignored.
    """
    denied = {
        entry.error_message or f"{entry.service}:{entry.operation}"
        for entry in journal
        if entry.role in roles and (entry.status == 403 or (entry.error_code or "").startswith("AccessDenied"))
    }
    return [f"access denied: {message}" for message in sorted(denied)]


def check_journal(created: Mapping[str, str], journal: Iterable[JournalEntry], adapter_key: str) -> list[str]:
    """Check that each created resource (URN -> name) has a successful mutating API call.

    Also check that each mutating call of the adapter, which uses the access key `adapter_key`, belongs to a resource.
    """
    problems, urns_with_calls = [], set()
    for entry in journal:
        if not entry.mutating or entry.status >= 400:
            continue
        if entry.urn is not None:
            urns_with_calls.add(entry.urn)
        elif entry.access_key == adapter_key:
            problems.append(f"{entry.service}:{entry.operation} (call {entry.seq}) belongs to no resource")
    problems += [
        f"{name} was reported as created, but the journal has no API call for it"
        for urn, name in created.items()
        if urn not in urns_with_calls
    ]
    return problems
