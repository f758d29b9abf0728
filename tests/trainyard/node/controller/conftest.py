"""Tests of the controller read events from S3 at each step, because their nodes have no connection."""

import pytest

from rehearsal.aws.process import EmulatedAws
from tests.clusters import create_cluster
from tests.conftest import REGION
from tests.trainyard.node.controller.runs import Run, RunWithSpare, StartingRun
from trainyard.node.controller import node_reports


@pytest.fixture(autouse=True)
def no_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_reports, "S3_POLL_SECONDS", 0.0)


@pytest.fixture
def run(account: EmulatedAws) -> Run:
    return Run(create_cluster(REGION))


@pytest.fixture
def starting_run(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> StartingRun:
    run = StartingRun(create_cluster(REGION))
    run.allow_replacements(2)
    monkeypatch.setattr(run.controller.groups, "mark_unhealthy", lambda node: None)
    return run


@pytest.fixture
def run_with_spare(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> RunWithSpare:
    run = RunWithSpare(create_cluster(REGION))
    monkeypatch.setattr(run.controller.groups, "mark_unhealthy", lambda node: None)
    run.step("ready", 0)
    run.pass_health_check()
    assert run.published.attempt == 1
    run.step("workers_up", 1)
    return run
