"""The launch with the real Pulumi CLI: what each `up` launches and stops. Skipped when the CLI is not on PATH."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.engine.test_cli import Stack, create_stack, requires_cli

pytestmark = requires_cli
# Replaces the launcher: writes the objects that `trainyard launch` and `stop` write, and fails if a file `fail` exists.
LAUNCHER = f"""#!{sys.executable}
import os, sys, time
from pathlib import Path
folder = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(folder))
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.run import Outcome
from trainyard.operations.cluster import Cluster
from trainyard.operations.run_record import create_run_record

action, arguments = sys.argv[1], sys.argv[2:]
option = lambda name: arguments[arguments.index(name) + 1] if name in arguments else ""
cluster = Cluster(option("--stack"), os.environ["AWS_REGION"], option("--manifest"))
current = cluster.current_run()

def end(run, state, **fields):
    if cluster.outcome(run) is None:
        outcome = Outcome(state=state, reason="test", attempts=1, ended_at=time.time(), **fields)
        cluster.data.write(RunLayout(run).outcome, outcome.model_dump_json().encode())

if action == "stop":
    log = f"stop {{current.run if current else None}}"
    if current:
        end(current.run, "stopped")
else:
    name = f"r-{{len(list(cluster.data.folders('runs/'))) + 1}}"
    is_same = current and current.manifest_digest == cluster.manifest.digest()
    if "--update" in arguments and is_same:
        log = "launch nothing"
        name = current.run
    else:
        log = f"launch {{name}}"
        if current:
            end(current.run, "stopped", keeps_reservations=True)
        fields = {{"run": name, "trigger": option("--trigger"), "again": option("--again")}}
        record = create_run_record(cluster.manifest, time.time()).model_copy(update=fields)
        content = record.model_dump_json().encode()
        cluster.data.write(RunLayout(name).record, content)
        cluster.staging.write(CURRENT_RUN, content)
        cluster.data.write(RunLayout(name).latest_metrics, b'{{"step": 40}}')
with (folder / "calls").open("a") as calls:
    calls.write(log + "\\n")
if (folder / "fail").exists() and action == "launch":
    end(name, "failed", launch_failed=True)
    sys.exit("no capacity")
if action == "launch":
    print('{{"run": "%s"}}' % name)
"""


class LaunchedStack:
    """A stack whose launches and stops are recorded in `calls`."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        launcher = stack.tree / "infra/launcher"
        launcher.write_text(LAUNCHER)
        launcher.chmod(0o755)

    def up(self, *options: str) -> list[str]:
        """Return the calls of the launcher, then the first line of each error."""
        calls = self.stack.tree / "calls"
        calls.write_text("")
        self.stack.workspace.write_config(self.stack.config)
        log = self.stack.workspace.run("up", "--yes", "--skip-preview", *options, on_event=lambda event: None)
        return [*calls.read_text().splitlines(), *(message.splitlines()[0] for _, message in log.errors)]

    def set_job(self, **changes: Any) -> None:
        self.stack.settings["job"] |= changes

    def set_launch(self, **changes: Any) -> None:
        self.stack.settings["launch"] = {**self.stack.settings.get("launch", {}), **changes}

    @property
    def output(self) -> str:
        return str(self.stack.exports()["launch"])


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[LaunchedStack]:
    with create_stack(tmp_path, "local") as stack:
        created = LaunchedStack(stack)
        assert created.up() == ["launch r-1"]
        assert created.up() == []
        yield created


def launch_urn(launched: LaunchedStack) -> str:
    urns = [resource["urn"] for resource in launched.stack.workspace.export_state()["deployment"]["resources"]]
    return next(str(urn) for urn in urns if urn.endswith("command:local:Command::launch"))


def test_replaced_launch_stops_the_earlier_run_first(launched: LaunchedStack) -> None:
    assert launched.up("--replace", launch_urn(launched)) == ["stop r-1", "launch r-2"]
    assert (launched.output, launched.up()) == ('{"run": "r-2"}', [])


def test_reverted_file_after_a_failed_update_launches_again(launched: LaunchedStack) -> None:
    (launched.stack.tree / "fail").touch()
    launched.set_job(environment={"SEED": "2"})
    launched.set_launch(replace_running=True)
    call, *errors = launched.up()
    assert (call, bool(errors)) == ("launch r-2", True)
    (launched.stack.tree / "fail").unlink()
    launched.set_job(environment={})
    assert launched.up() == ["stop r-2", "launch r-3"]
    assert (launched.output, launched.up()) == ('{"run": "r-3"}', [])


def test_update_does_not_stop_an_active_run_without_permission(launched: LaunchedStack) -> None:
    launched.set_job(environment={"SEED": "2"})
    (error,) = launched.up()
    assert "launch.replace_running = False: this update stops run r-1 at step 40" in error
    launched.set_launch(replace_running=True)
    assert launched.up() == ["launch r-2"]
    assert launched.up() == []


def test_another_value_of_again_launches_a_run_that_has_ended_again(launched: LaunchedStack) -> None:
    launched.set_launch(again=2, replace_running=True)
    assert launched.up() == ["stop r-1", "launch r-2"]
    assert launched.up() == []


def test_update_of_a_target_launches_and_stops_nothing(launched: LaunchedStack) -> None:
    prefix = launch_urn(launched).partition("trainyard:infra:Launch")[0]
    email = f"{prefix}trainyard:infra:Guardrails$aws:sns/topicSubscription:TopicSubscription::guardrails-email"
    launched.stack.settings["guardrails"] = {"email": "operator@example.com"}
    assert launched.up("--target", email) == []
    assert email in {resource["urn"] for resource in launched.stack.workspace.export_state()["deployment"]["resources"]}
    assert launched.up() == []
