"""The node playbook: variables of ansible-runner, and reboots."""

import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import ansible_runner
import pytest

from rehearsal.aws.process import EmulatedAws
from tests.clusters import create_cluster
from tests.conftest import REGION
from tests.manifests import MANIFEST
from trainyard.models.events import NodeRole
from trainyard.models.layout import CURRENT_RUN
from trainyard.models.manifest import Gpus, Hardware, Manifest
from trainyard.node import bootstrap, identity
from trainyard.node import playbook as playbook_module
from trainyard.node.agent.job_container import CLIENT_VARIABLES, VARIABLE_PREFIX
from trainyard.node.agent.state import AgentStateFile
from trainyard.node.identity import CONTAINER_NAME, CONTAINER_WRAPPER, Node

TAG = "nvcr.io/nvidia/pytorch:26.10-py3"
IMAGE = f"nvcr.io/nvidia/pytorch@sha256:{'5' * 64}"


def create_node(role: NodeRole, group: str | None) -> Node:
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
    """Arguments of ansible-runner on this node."""
    arguments: dict[str, Any] = {}

    def runner(**keywords: Any) -> SimpleNamespace:
        arguments.update(keywords)
        return SimpleNamespace(rc=0)

    monkeypatch.setattr(ansible_runner, "run", runner)
    monkeypatch.setattr(playbook_module, "BASE", root / "opt")
    monkeypatch.setattr(playbook_module, "ROOT", root)
    assert playbook_module.run_playbook(node, manifest, IMAGE, "any.yml", lambda _: True) == 0
    return arguments


@pytest.mark.parametrize(("role", "group"), [("worker", "workers"), ("head", None)])
def test_worker_gets_the_variables_of_the_worker_group(
    role: Literal["worker", "head"], group: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = run(create_node(role, group), MANIFEST, tmp_path, monkeypatch)
    assert arguments["extravars"].get("group", {}).get("name") == group
    assert arguments["extravars"].get("baking") == (False if role == "worker" else None)


def test_playbook_gets_image_name_and_wrapper_of_the_job_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = run(create_node("worker", "workers"), MANIFEST, tmp_path, monkeypatch)
    wrapper = str(tmp_path / "opt" / CONTAINER_WRAPPER)
    assert arguments["extravars"]["job_container"] == {
        "image": IMAGE,
        "name": CONTAINER_NAME,
        "wrapper": wrapper,
        "variable_prefix": VARIABLE_PREFIX,
        "client_variables": CLIENT_VARIABLES,
    }


@pytest.mark.parametrize(("role", "expected"), [("worker", IMAGE), ("builder", TAG)])
def test_a_worker_pulls_the_image_of_its_run(
    role: NodeRole, expected: str, account: EmulatedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = create_cluster(REGION, container=TAG)
    record = cluster.create_run_record()
    run = record.model_copy(update={"job": record.job.model_copy(update={"container": IMAGE})})
    cluster.staging.write(CURRENT_RUN, run.model_dump_json().encode())
    assert playbook_module.find_container_image(create_node(role, "workers"), cluster.manifest) == expected


@pytest.mark.parametrize(("instance_type", "gpus"), [("p4d.24xlarge", 8), ("c7i.xlarge", 0)])
def test_builder_of_another_instance_type_has_no_hardware(
    instance_type: str, gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "metadata", {"meta-data/instance-type": instance_type}.__getitem__)
    hardware = Hardware(gpus=Gpus(model="A100", driver="open", nvswitch=True), disks=8)
    changes = {"instance_type": "p4d.24xlarge", "gpus": 8, "efa_interfaces": 4, "hardware": hardware}
    group = MANIFEST.groups[0].model_copy(update=changes)
    manifest = MANIFEST.model_copy(update={"groups": (group,)})
    arguments = run(create_node("builder", "workers"), manifest, tmp_path, monkeypatch)
    group_variables = arguments["extravars"]["group"]
    assert (group_variables["gpus"], group_variables["efa_interfaces"]) == (gpus, gpus // 2)
    assert (group_variables["hardware"]["gpus"] is not None) == bool(gpus)
    assert arguments["extravars"]["baking"]


@pytest.mark.parametrize(("instance_type", "disks"), [("g6e.12xlarge", 2), ("g6e.24xlarge", 4)])
def test_worker_has_the_disks_of_its_instance_type(
    instance_type: str, disks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "metadata", {"meta-data/instance-type": instance_type}.__getitem__)
    changes = {
        "instance_type": "g6e.12xlarge",
        "hardware": Hardware(disks=2),
        "other_instance_types": {"g6e.24xlarge": 4},
    }
    group = MANIFEST.groups[0].model_copy(update=changes)
    manifest = MANIFEST.model_copy(update={"groups": (group,)})
    variables = run(create_node("worker", "workers"), manifest, tmp_path, monkeypatch)["extravars"]["group"]
    assert (variables["instance_type"], variables["hardware"]["disks"]) == (instance_type, disks)


def test_runner_folder_of_a_builder_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "metadata", lambda _: "c7i.xlarge")
    arguments = run(create_node("builder", "workers"), MANIFEST, tmp_path, monkeypatch)
    assert arguments["private_data_dir"] == str(tmp_path / "run/trainyard/playbook")


def test_builder_without_a_machine_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playbook_module, "ROOT", tmp_path)
    playbook_module.require_bakeable(create_node("worker", "workers"))
    with pytest.raises(RuntimeError, match="cannot be baked"):
        playbook_module.require_bakeable(create_node("builder", "workers"))


@pytest.mark.parametrize(("is_working", "status"), [(True, "deferred"), (False, "rebooting")])
def test_reboot_is_deferred_while_the_job_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_working: bool, status: str
) -> None:
    """The agent of a node that is kept for another run is active too, but no job runs."""
    commands: list[list[str]] = []

    def systemctl(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=0)  # the agent is active

    statuses: list[str] = []
    writer = SimpleNamespace(write_event=lambda event: statuses.append(event.status), flush=lambda: None)
    request = tmp_path / "reboot-required"
    request.write_text("a new driver")
    AgentStateFile(tmp_path / "runs/run-1/agent.json").update(attempt=1, attempt_reported=not is_working)
    monkeypatch.setattr(playbook_module, "BASE", tmp_path)
    monkeypatch.setattr(identity, "_CONFIGURED", tmp_path / "configured")
    monkeypatch.setattr(playbook_module, "REBOOT_REQUEST", request)
    monkeypatch.setattr(playbook_module, "read_node", lambda: create_node("worker", "workers"))
    monkeypatch.setattr(playbook_module, "read_manifest", lambda: MANIFEST)
    monkeypatch.setattr(playbook_module, "find_container_image", lambda *_: None)
    monkeypatch.setattr(playbook_module, "open_event_writer", lambda *_: nullcontext(writer))
    monkeypatch.setattr(playbook_module, "run_playbook", lambda *_: 0)
    monkeypatch.setattr(subprocess, "run", systemctl)
    assert playbook_module.main() == 0
    assert statuses == ["started", status]
    assert (["systemctl", "reboot"] in commands) is not is_working
    assert identity.is_configured(MANIFEST.node_digest(), None) is is_working
