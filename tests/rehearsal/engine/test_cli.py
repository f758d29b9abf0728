"""The local stack with the real Pulumi CLI, on an emulated account. Skipped when the CLI is not on PATH."""

import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rehearsal.adapter.deployment import Event
from rehearsal.adapter.provider import Provider, serve_provider
from rehearsal.aws.process import EmulatedAws
from rehearsal.engine.cli import REQUIRED_PROGRAMS
from rehearsal.engine.log import EngineLog
from rehearsal.engine.state import read_exports, read_resources
from rehearsal.engine.workspace import Workspace
from rehearsal.seed import create_existing_resources
from tests.conftest import aws_environment
from tests.infra.conftest import STACKS
from tests.rehearsal.adapter.conftest import LAUNCHER, PROGRAM, ROOT
from tools.stack_files import read_stack_file
from trainyard.config.loader import load_settings
from trainyard.config.project import read_project

requires_cli = pytest.mark.skipif(
    any(shutil.which(name) is None for name in REQUIRED_PROGRAMS), reason="the Pulumi CLI is not on PATH"
)
pytestmark = requires_cli
OBJECT, GROUP = "aws:s3/bucketObjectv2:BucketObjectv2", "aws:autoscaling/group:Group"
BUDGET, COMMAND = "aws:budgets/budget:Budget", "command:local:Command"


@dataclass
class Stack:
    """One stack, which the tests of this file change in their order: each test is one step."""

    tree: Path
    workspace: Workspace
    config: dict[str, Any]
    aws: EmulatedAws
    events: list[Event] = field(default_factory=list)

    @property
    def settings(self) -> Any:
        return self.config["trainyard:cluster"]

    def run(self, command: str) -> EngineLog:
        self.events.clear()
        self.workspace.write_config(self.config)
        return self.workspace.run(command, "--yes", "--skip-preview", on_event=self.events.append)

    def up(self) -> Counter[str]:
        """Return how many operations of each kind the CLI executed on each type."""
        log = self.run("up")
        assert not log.errors
        return Counter(f"{event.kind} {event.type}" for event in self.events if event.kind.endswith("ed"))

    def heads(self) -> list[tuple[str, str]]:
        """Return zone and state of each head so far."""
        heads = [each for each in self.aws.instances() if each.tags["trainyard:role"] == "head"]
        return [(head.zone, head.state) for head in heads]

    def exports(self) -> dict[str, Any]:
        return read_exports(self.workspace.export_state())


@contextmanager
def create_stack(parent: Path, name: str, plugins: Collection[str] = ()) -> Iterator[Stack]:
    """Create a Pulumi stack of a shipped stack file in a copy of the program, with a script as launcher.

    `plugins`: packages for which the CLI starts its own plugin.
    """
    tree, folder = parent / "tree", parent / "run"
    tree.mkdir()
    folder.mkdir()
    for part in (*PROGRAM, "examples"):
        copy: Callable[..., Any] = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, tree / part)
    launcher = tree / "infra" / "launcher"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    with EmulatedAws.start(folder / "aws") as aws, aws_environment(aws):
        provider = Provider(tree / "infra", aws.region)
        with serve_provider(provider) as aws_port, serve_provider(provider) as command_port:
            ports = {"aws": aws_port, "command": command_port}
            attached = {package: port for package, port in ports.items() if package not in plugins}
            workspace = Workspace(folder / "pulumi", read_project(tree), name, attached)
            config = read_stack_file(name, tree)
            create_existing_resources(aws, load_settings(config["trainyard:cluster"], tree, name), None)
            workspace.create(config)
            yield Stack(tree, workspace, config, aws)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with create_stack(tmp_path_factory.mktemp("stack"), "local") as created:
        yield created


@pytest.mark.parametrize("name", [name for name in STACKS if name != "local"])
def test_up_of_a_shipped_stack_again_changes_nothing(name: str, tmp_path: Path) -> None:
    with create_stack(tmp_path, name) as shipped:
        assert {operation.split()[0] for operation in shipped.up()} == {"created"}
        assert shipped.up() == {}
        assert not shipped.run("destroy").errors


def test_another_zone_replaces_head_and_file_system_without_destroy(tmp_path: Path) -> None:
    """A stack with a file system is in one zone. After a shortage there, `pulumi up` moves it (capacity.zones)."""
    with create_stack(tmp_path, "a100-cluster") as shipped:
        shipped.settings["capacity"] = {"zones": ["us-east-1a"]}
        shipped.up()
        shipped.settings["capacity"] = {"zones": ["us-east-1b"]}
        assert not shipped.run("up").errors
        replaced = {event.type for event in shipped.events if event.kind == "deleted"}
        assert {GROUP, "aws:fsx/lustreFileSystem:LustreFileSystem"} <= replaced
        assert shipped.heads() == [("us-east-1a", "terminated"), ("us-east-1b", "running")]
        assert shipped.up() == {}


def test_changed_user_data_replaces_the_head(tmp_path: Path) -> None:
    with create_stack(tmp_path, "local") as changed:
        changed.up()
        with (changed.tree / "trainyard/node/bootstrap.py").open("a") as bootstrap:
            bootstrap.write("# another version\n")
        assert changed.up()[f"updated {GROUP}"] == 2
        assert [state for _, state in changed.heads()] == ["terminated", "running"]
        assert changed.up() == {}


def test_another_region_after_a_first_up_that_failed_is_refused(tmp_path: Path) -> None:
    with create_stack(tmp_path, "local") as failed:
        (failed.tree / "infra/launcher").write_text("#!/bin/sh\nexit 1\n")
        assert failed.run("up").errors
        assert failed.exports() == {}
        failed.config["aws:region"] = "us-west-2"
        ((_, message),) = failed.run("up").errors
    assert "the stack local is deployed in us-east-1" in message


def test_up_creates_the_stack(stack: Stack) -> None:
    done = stack.up()
    assert sum(count for operation, count in done.items() if operation.startswith("created aws:")) > 30
    assert {operation.split()[0] for operation in done} == {"created"}
    assert stack.exports()["launch"] == '{"run": "r-1"}'


def test_up_again_changes_nothing(stack: Stack) -> None:
    assert stack.up() == {}


def test_up_from_a_second_clone_changes_nothing(stack: Stack, tmp_path: Path) -> None:
    clone, project = tmp_path / "elsewhere" / "clone", stack.workspace.folder / "Pulumi.yaml"
    shutil.copytree(stack.tree, clone)
    before = project.read_text()
    project.write_text(before.replace(str(stack.tree), str(clone)))
    try:
        assert stack.up() == {}
    finally:
        project.write_text(before)


def test_another_region_is_refused_and_changes_nothing(stack: Stack) -> None:
    region = stack.config["aws:region"]
    stack.config["aws:region"] = "us-west-2"
    try:
        ((_, message),) = stack.run("up").errors
    finally:
        stack.config["aws:region"] = region
    assert f"aws:region = 'us-west-2': the stack local is deployed in {region}" in message
    assert not [event for event in stack.events if event.kind in ("created", "updated", "deleted")]


def test_more_nodes_update_group_budget_manifest_and_launch(stack: Stack) -> None:
    stack.settings["nodes"] = 4
    assert stack.up() == {f"updated {resource}": 1 for resource in (GROUP, BUDGET, OBJECT, COMMAND)}


def test_changed_job_updates_only_archive_manifest_and_launch(stack: Stack) -> None:
    del stack.settings["job"]["train"]
    stack.settings["job"] |= {"source": "examples/custom-job", "command": ["train.py"]}
    assert stack.up() == {f"created {OBJECT}": 1, f"updated {OBJECT}": 1, f"updated {COMMAND}": 1}


def test_unsupported_input_fails_the_up_and_creates_nothing(stack: Stack) -> None:
    file = stack.tree / "infra/components/vpc.py"
    before = file.read_text()
    changed = before.replace('connectivity_type="public",', 'private_ip="10.42.128.9",')
    assert changed != before
    file.write_text(changed)
    ((_, message),) = stack.run("up").errors
    file.write_text(before)
    assert "aws:ec2/natGateway:NatGateway network-nat: the adapter does not support the input privateIp" in message
    assert not [event for event in stack.events if event.kind in ("created", "updated", "deleted")]


def test_destroy_deletes_in_an_order_that_aws_accepts(stack: Stack) -> None:
    before = read_resources(stack.workspace.export_state(), {})
    assert not stack.run("destroy").errors
    done = Counter(event.kind for event in stack.events if event.kind in ("deleted", "retained"))
    own = [resource for resource in before.values() if resource.custom]
    retained = len([resource for resource in own if resource.retain_on_delete])
    assert (done["retained"], done["deleted"]) == (retained, len(own) - retained)
    assert read_resources(stack.workspace.export_state(), {}) == {}


def test_second_destroy_deletes_nothing(stack: Stack) -> None:
    assert not stack.run("destroy").errors
    assert [event for event in stack.events if event.kind == "deleted"] == []


def test_up_after_destroy_imports_the_data_bucket(stack: Stack) -> None:
    assert stack.up()["imported aws:s3/bucket:Bucket"] == 1
    assert stack.up() == {}
