"""What a node's play is given."""

import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import ansible_runner
import pytest

from tests.manifests import MANIFEST
from trainyard.models.events import NodeRole
from trainyard.models.manifest import Gpus, Hardware, Manifest
from trainyard.node import bootstrap
from trainyard.node import playbook as play
from trainyard.node.identity import Node


def node_of(role: NodeRole, group: str | None) -> Node:
    return Node(
        role=role,
        group=group,
        instance="i-1",
        address="127.0.0.1",
        boot="0001",
        region="us-east-1",
        manifest_uri="",
        bundle="/b",
    )


def run(node: Node, manifest: Manifest, root: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What ansible-runner is given on such a node."""
    given: dict[str, Any] = {}

    def runner(**asked: Any) -> SimpleNamespace:
        given.update(asked)
        return SimpleNamespace(rc=0)

    monkeypatch.setattr(ansible_runner, "run", runner)
    monkeypatch.setattr(play, "BASE", root / "opt")
    monkeypatch.setattr(play, "ROOT", root)
    assert play.run_playbook(node, manifest, "any.yml", lambda _: True) == 0
    return given


@pytest.mark.parametrize(("role", "group"), [("worker", "workers"), ("head", None)])
def test_a_worker_is_configured_as_its_own_group_says(
    role: Literal["worker", "head"], group: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = run(node_of(role, group), MANIFEST, tmp_path, monkeypatch)
    assert given["extravars"].get("group", {}).get("name") == group
    assert given["extravars"].get("baking") == (False if role == "worker" else None)


@pytest.mark.parametrize(("instance_type", "gpus"), [("p4d.24xlarge", 8), ("c7i.xlarge", 0)])
def test_a_builder_of_another_type_leaves_the_hardware_to_the_nodes(
    instance_type: str, gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "metadata", {"meta-data/instance-type": instance_type}.__getitem__)
    hardware = Hardware(gpus=Gpus(model="A100", driver="open", nvswitch=True), disks=8)
    own = {"instance_type": "p4d.24xlarge", "gpus": 8, "efa_interfaces": 4, "hardware": hardware}
    group = MANIFEST.groups[0].model_copy(update=own)
    manifest = MANIFEST.model_copy(update={"groups": (group,)})
    given = run(node_of("builder", "workers"), manifest, tmp_path, monkeypatch)
    told = given["extravars"]["group"]
    assert (told["gpus"], told["efa_interfaces"]) == (gpus, gpus // 2)
    assert (told["hardware"]["gpus"] is not None) == bool(gpus)
    assert given["extravars"]["baking"]


def test_what_a_builders_play_still_writes_at_its_end_is_in_no_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "metadata", lambda _: "c7i.xlarge")
    given = run(node_of("builder", "workers"), MANIFEST, tmp_path, monkeypatch)
    assert given["private_data_dir"] == str(tmp_path / "run/trainyard/play")


def test_a_folder_is_not_baked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(play, "ROOT", tmp_path)
    play.require_bakeable(node_of("worker", "workers"))
    with pytest.raises(RuntimeError, match="can't be baked"):
        play.require_bakeable(node_of("builder", "workers"))


def test_a_job_that_may_run_is_not_ended_by_a_reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[list[str]] = []

    def systemctl(command: list[str], **_: Any) -> SimpleNamespace:
        said.append(command)
        return SimpleNamespace(returncode=0)  # the agent is active

    told: list[str] = []
    writer = SimpleNamespace(tell=lambda event: told.append(event.status), flush=lambda: None)
    wanted = tmp_path / "reboot-required"
    wanted.write_text("a new driver")
    monkeypatch.setattr(play, "REBOOT", wanted)
    monkeypatch.setattr(play, "this_node", lambda: node_of("worker", "workers"))
    monkeypatch.setattr(play, "manifest_at_boot", lambda: MANIFEST)
    monkeypatch.setattr(play, "events_writer", lambda *_: nullcontext(writer))
    monkeypatch.setattr(play, "run_playbook", lambda *_: 0)
    monkeypatch.setattr(subprocess, "run", systemctl)
    assert play.main() == 0
    assert told == ["started", "deferred"]
    assert ["systemctl", "reboot"] not in said
