"""An update that stops an active run requires `launch.replace_running`; the trigger of the launch follows the run."""

import re
import time
from typing import Any

import pulumi
import pytest

from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.mocks import UpError, up
from rehearsal.adapter.static_account import StaticAccount
from tests.infra.conftest import ROOT
from tools.stack_files import read_stack_file
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.manifest import Manifest
from trainyard.models.run import NO_RUN, Outcome, RunRecord
from trainyard.operations.run_record import create_run_record

COMMAND, OBJECT = "command:local:Command", "aws:s3/bucketObjectv2:BucketObjectv2"
REPLACES = "trainyard:cluster.launch.replace_running = False: this update stops run"


class Stack:
    """A deployed stack with a run that was launched last."""

    def __init__(self, **settings: Any) -> None:
        self.objects: dict[str, str] = {}
        self.record = self._create_record(self.up(**settings))
        self.objects[CURRENT_RUN] = self.record.model_dump_json()

    def up(self, *, preview: bool = False, **settings: Any) -> Deployment:
        config = read_stack_file("local")
        for key, value in settings.items():
            section = config["trainyard:cluster"].setdefault(key, {})
            config["trainyard:cluster"][key] = {**section, **value} if isinstance(value, dict) else value
        account = StaticAccount(cluster_exists=True, retained_bucket="data", objects=self.objects)
        return up(config, "local", ROOT, account=account, preview=preview)

    def _create_record(self, run: Deployment) -> RunRecord:
        (text,) = [each.inputs["content"] for each in run.resources_of_type(OBJECT) if each.name == "manifest"]
        again = str(run.resources_of_type(COMMAND)[0].inputs["triggers"][1])
        return create_run_record(Manifest.model_validate_json(text), time.time()).model_copy(update={"again": again})

    def end(self, state: str = "succeeded", **fields: Any) -> None:
        outcome = Outcome.model_validate({"state": state, "reason": "", "attempts": 1, "ended_at": 1.0, **fields})
        self.objects[RunLayout(self.record.run).outcome] = outcome.model_dump_json()


@pytest.fixture
def stack() -> Stack:
    return Stack()


def triggers(run: Deployment) -> list[str]:
    return list(run.resources_of_type(COMMAND)[0].inputs["triggers"])


CHANGES = {
    "job": {"job": {"environment": {"SEED": "2"}}},
    "fewer nodes": {"nodes": 1},
    "again": {"launch": {"again": 2}},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_update_that_stops_an_active_run_is_refused(stack: Stack, changes: dict[str, Any]) -> None:
    stack.objects[RunLayout(stack.record.run).latest_metrics] = '{"step": 40}'
    with pytest.raises(UpError, match=f"{REPLACES} {stack.record.run} at step 40, because"):
        stack.up(**changes)


def test_preview_of_replaced_resources_that_the_run_uses_is_refused(stack: Stack) -> None:
    """They have no ids in a preview, so that the manifest is not known."""
    with pytest.raises(UpError, match=f"{REPLACES} .* it replaces resources that the run uses"):
        stack.up(preview=True)


@pytest.mark.parametrize("changes", [{}, {"nodes": 4}, {"job": {"time_limit_minutes": 100}}])
def test_update_that_continues_an_active_run_is_not_refused(stack: Stack, changes: dict[str, Any]) -> None:
    assert triggers(stack.up(**changes)) == [NO_RUN, ""]


def test_active_run_is_replaced_with_permission(stack: Stack) -> None:
    run = stack.up(job={"environment": {"SEED": "2"}}, launch={"replace_running": True})
    assert "--replace-running" in run.resources_of_type(COMMAND)[0].inputs["update"]


def test_run_that_has_ended_is_not_launched_again(stack: Stack) -> None:
    stack.end()
    assert triggers(stack.up()) == [NO_RUN, ""]


def test_again_launches_a_run_that_has_ended(stack: Stack) -> None:
    stack.end()
    assert triggers(stack.up(launch={"again": 2})) == [NO_RUN, "2"]


@pytest.mark.parametrize(
    "fields", [{"state": "failed", "launch_failed": True}, {"state": "stopped", "keeps_reservations": True}]
)
def test_run_that_pulumi_does_not_know_changes_the_trigger(stack: Stack, fields: dict[str, Any]) -> None:
    """Its launch failed, or a launch that failed has stopped it: the state of Pulumi names another run."""
    stack.end(**fields)
    assert triggers(stack.up()) == [stack.record.run, ""]


SAME, NEW = "Nodes: those of", "Nodes: 2 new instances"
NODE_CHANGES = {
    "argument": ({"job": {"environment": {"SEED": "2"}}}, f"{SAME} .*, only the job changes"),
    "node role": ({"node": {"variables": {"base_nofile": 9}}}, f"{SAME} .*, the node playbook runs on them again"),
    "root volume": (
        {"root_volume_gib": 80},
        f"{NEW}, because instance type, purchase option, image, root volume or EFA",
    ),
    "more nodes": ({"nodes": 4, "launch": {"again": 2}}, f"{SAME} .*, only the job changes, and 2 new instances"),
    "fewer nodes": ({"nodes": 1, "launch": {"again": 2}}, f"{SAME} .*, only the job changes; 1 node is terminated"),
}


@pytest.mark.parametrize(("changes", "message"), NODE_CHANGES.values(), ids=NODE_CHANGES)
def test_preview_describes_the_use_of_kept_nodes(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    logged: list[str] = []
    monkeypatch.setattr(pulumi.log, "info", lambda text, *_: logged.append(text))
    stack.end(nodes_kept_until=time.time() + 600)
    stack.up(**{"launch": {"again": 2}, **changes})
    assert any(re.search(message, line) for line in logged), logged


def test_preview_without_kept_nodes_launches_instances(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(pulumi.log, "info", lambda text, *_: logged.append(text))
    stack.end()
    stack.up(job={"environment": {"SEED": "2"}})
    assert any(NEW in line for line in logged), logged


def test_update_continues_a_run_with_the_job_of_trainyard_run(stack: Stack) -> None:
    record = stack.record
    changes = {"manifest_digest": "0" * 64, "deployed_digest": record.manifest_digest}
    stack.objects[CURRENT_RUN] = record.model_copy(update=changes).model_dump_json()
    assert triggers(stack.up()) == [NO_RUN, ""]
