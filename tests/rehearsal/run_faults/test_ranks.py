"""Faults of ranks and of their nodes while a job runs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.conftest import run_rehearsal
from trainyard.models.events import NODE_EVENT, AgentEvent, NodeEvent

pytestmark = pytest.mark.slow


def test_job_continues_after_a_rank_is_killed_and_its_peers_hang(tree: Path) -> None:
    fault = "rank-kill,rank=3,peers=hang,step=10"
    changes = ("job.train.steps=60", "job.train.checkpoint.memory_interval_steps=1")
    settings = [option for change in changes for option in ("--set", change)]
    ended = run_rehearsal(tree, "--stack", "local", *settings, "--fault", fault)
    assert ended.exit_status == 0, ended.stderr
    assert fault in ended.report["faults"]
    assert ended.report["faults_without_effect"] == []
    assert ended.report["last_loss"] < ended.report["first_loss"]
    (recovery,) = ended.report["recoveries"]
    assert recovery["attempt"] == 1
    assert recovery["repeated_steps"] <= 1


def test_job_is_not_interrupted_when_an_agent_is_killed(tree: Path) -> None:
    fault = "agent-kill,node=1,step=10"
    ended = run_rehearsal(tree, "--stack", "local", "--set", "job.train.steps=200", "--fault", fault)
    assert (ended.exit_status, ended.report["faults_without_effect"]) == (0, []), ended.stderr
    (recovery,) = ended.report["recoveries"]
    assert recovery["attempt"] is None, "the job continued"


def test_failure_of_a_node_with_a_broken_gpu_carries_its_health(tree: Path, shared: dict[str, str], s3: Any) -> None:
    fault = "gpu,node=1,gpu=1,xid=94,step=5"
    changes = ("--nodes", "2", "--set", "job.train.steps=200")  # the last step is later than the fault
    ended = run_rehearsal(tree, "--stack", "a100-cluster", *changes, "--fault", fault, environment=shared)
    assert ended.exit_status == 0, ended.stderr
    assert ended.report["faults_without_effect"] == []
    findings = {
        event.instance: {(finding.rule, finding.device) for finding in event.health.findings}
        for event in read_events(s3, ended.report["results_uri"])
        if isinstance(event, AgentEvent) and event.state == "workers_failed"
    }
    assert ("gpu-memory-error", "GPU 1") in set().union(*findings.values())
    assert set() in findings.values(), "the other node is healthy"


def read_events(s3: Any, results_uri: str) -> Iterator[NodeEvent]:
    """Return the events of the run with these results, from the retained data bucket."""
    bucket, prefix = results_uri.removeprefix("s3://").split("/", 1)
    events = prefix.removesuffix("/").removesuffix("results") + "events/"
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=events):
        for item in page.get("Contents", []):
            body = s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            yield from map(NODE_EVENT.validate_json, body.splitlines())
