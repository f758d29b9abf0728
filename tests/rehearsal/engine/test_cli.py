"""The local stack through the real engine, on an emulated account: where the Pulumi CLI is on PATH."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from rehearsal.adapter.graph import Event
from rehearsal.adapter.provider import Provider, serving
from rehearsal.aws.process import EmulatedAws
from rehearsal.engine.cli import NEEDED
from rehearsal.engine.log import EngineLog
from rehearsal.engine.state import exports_of, resources_of
from rehearsal.engine.workspace import Workspace
from tests.rehearsal.adapter.conftest import LAUNCHER, PROGRAM, ROOT

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in NEEDED), reason="the Pulumi CLI is not on PATH"
)
OBJECT, GROUP = "aws:s3/bucketObjectv2:BucketObjectv2", "aws:autoscaling/group:Group"
BUDGET, COMMAND = "aws:budgets/budget:Budget", "command:local:Command"


@dataclass
class Stack:
    """One stack through its life, step by step: each test is one, in the order of the file."""

    tree: Path
    workspace: Workspace
    config: dict[str, Any]
    events: list[Event] = field(default_factory=list)

    @property
    def settings(self) -> Any:
        return self.config["trainyard:cluster"]

    def run(self, verb: str) -> EngineLog:
        self.events.clear()
        self.workspace.configure(self.config)
        return self.workspace.run(verb, "--yes", "--skip-preview", tell=self.events.append)

    def up(self) -> Counter[str]:
        """What it did to which type, without the lines."""
        log = self.run("up")
        assert not log.errors
        return Counter(f"{event.kind} {event.type}" for event in self.events if event.kind.endswith("ed"))

    def exports(self) -> dict[str, Any]:
        return exports_of(self.workspace.state())


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    tree = tmp_path_factory.mktemp("tree")
    for name in (*PROGRAM, "examples"):
        copy: Callable[..., Any] = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tree / name)
    launcher = tree / "trainyard" / "launcher"
    launcher.parent.mkdir()
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    folder = tmp_path_factory.mktemp("run")
    with EmulatedAws.start(folder / "aws") as aws, pytest.MonkeyPatch.context() as patch:
        for key, value in aws.environment().items():
            patch.setenv(key, value)
        provider = Provider(tree, aws.region)
        with serving(provider) as own, serving(provider) as command:
            workspace = Workspace(folder / "pulumi", tree, "local", {"aws": own, "command": command})
            config = yaml.safe_load((tree / "stacks/Pulumi.local.yaml").read_text())["config"]
            workspace.lay_out(config)
            yield Stack(tree, workspace, config)


def test_up_makes_the_whole_stack(stack: Stack) -> None:
    done = stack.up()
    assert sum(count for what, count in done.items() if what.startswith("created aws:")) > 30
    assert {what.split()[0] for what in done} == {"created"}
    assert stack.exports()["launch"] == '{"run": "r-1"}'


def test_up_again_changes_nothing(stack: Stack) -> None:
    assert stack.up() == {}


def test_more_nodes_change_group_budget_manifest_and_launch_and_replace_nothing(stack: Stack) -> None:
    stack.settings["nodes"] = 4
    assert stack.up() == {f"updated {one}": 1 for one in (GROUP, BUDGET, OBJECT, COMMAND)}


def test_changed_job_changes_its_archive_manifest_and_launch_alone(stack: Stack) -> None:
    del stack.settings["job"]["train"]
    stack.settings["job"] |= {"source": "examples/own-job", "command": ["train.py"]}
    assert stack.up() == {f"created {OBJECT}": 1, f"updated {OBJECT}": 1, f"updated {COMMAND}": 1}


def test_input_of_a_new_kind_ends_with_its_name_and_nothing_is_made(stack: Stack) -> None:
    file = stack.tree / "infra/components/vpc.py"
    before = file.read_text()
    changed = before.replace('connectivity_type="public",', 'private_ip="10.42.128.9",')
    assert changed != before
    file.write_text(changed)
    ((_, message),) = stack.run("up").errors
    file.write_text(before)
    assert "aws:ec2/natGateway:NatGateway nat: the adapter does not know the input privateIp" in message
    assert not [event for event in stack.events if event.kind in ("created", "updated", "deleted")]


def test_destroy_takes_an_order_that_aws_accepts(stack: Stack) -> None:
    before = resources_of(stack.workspace.state(), {})
    assert not stack.run("destroy").errors
    done = Counter(event.kind for event in stack.events if event.kind in ("deleted", "retained"))
    own = [one for one in before.values() if one.custom]
    retained = len([one for one in own if one.retain_on_delete])
    assert (done["retained"], done["deleted"]) == (retained, len(own) - retained)
    assert resources_of(stack.workspace.state(), {}) == {}


def test_up_after_that_adopts_the_data_bucket(stack: Stack) -> None:
    assert stack.up()["adopted aws:s3/bucket:Bucket"] == 1
    assert stack.up() == {}
