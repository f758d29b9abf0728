"""Health check of a job with a container: it runs in that container, which is removed afterwards."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.polling import eventually
from trainyard.models.run import HealthCheckRequest, Master
from trainyard.node.agent import health_check as health_check_module
from trainyard.node.agent import job_container, processes
from trainyard.node.agent.health_check import HealthCheckTorchrun
from trainyard.node.agent.job_container import VARIABLE_PREFIX

IMAGE = "nvcr.io/nvidia/pytorch:26.10-py3"
PACKAGE = Path(__file__).parents[4] / "trainyard/node/health_check"
MINIMUM_PYTHON = (3, 10)  # of container images in use; nodes have a newer Python


@pytest.fixture
def command_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with the command lines of `run-in-container`, which does not end by itself, and of `docker`."""
    file, programs = tmp_path / "commands", tmp_path / "bin"
    programs.mkdir()
    for name, action in (("run-in-container", "exec sleep 300"), ("docker", "exit 0")):
        (programs / name).write_text(
            f'#!/bin/sh\necho {name} "$@" "${{{VARIABLE_PREFIX}NCCL_NET_PLUGIN-}}" >> {file}\n{action}\n'
        )
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for module in (job_container, processes, health_check_module):
        monkeypatch.setattr(module, "BASE", tmp_path)
    monkeypatch.setattr(health_check_module, "find_job_user", lambda: None)
    return file


@pytest.fixture
def health_check(account: EmulatedAws, command_file: Path, tmp_path: Path) -> Iterator[HealthCheckTorchrun]:
    """Health check of one node with EFA."""
    cluster = clusters.create_cluster(REGION)
    record = cluster.create_run_record()
    group = cluster.manifest.groups[0].model_copy(update={"gpus": 8, "efa_interfaces": 4})
    run = record.model_copy(update={"job": record.job.model_copy(update={"container": IMAGE})})
    node = clusters.worker_identity(REGION, tmp_path)
    request = HealthCheckRequest(
        number=1, nodes=("i-1",), master=Master(address=node.address, port=20000), requested_at=0.0
    )
    health_check = HealthCheckTorchrun(node, cluster.manifest, group, run, request)
    yield health_check
    health_check.kill()
    health_check.close()


def read_commands(command_file: Path) -> list[str]:
    return command_file.read_text().splitlines() if command_file.exists() else []


def test_health_check_uses_python_and_plugin_of_the_image(
    health_check: HealthCheckTorchrun, command_file: Path
) -> None:
    eventually(lambda: len(read_commands(command_file)) == 1, "the container's start")
    (started,) = read_commands(command_file)
    *options, image = started.partition(" python -m torch.distributed.run ")[0].split()[1:]
    folder = health_check.reports.parent
    writable = (folder / "logs", folder / "reports", processes.home_folder())
    assert (options, image) == ([f"--writable={each}" for each in writable], IMAGE)
    assert " -m trainyard.node.health_check " in started
    assert not started.endswith(" ofi")


def test_torchrun_passes_all_arguments_on(health_check: HealthCheckTorchrun, command_file: Path) -> None:
    """Its parser rejects an argument of the script that abbreviates two options of torchrun, such as --master."""
    eventually(lambda: len(read_commands(command_file)) == 1, "the container's start")
    options = read_commands(command_file)[0].partition("torch.distributed.run ")[2].split()
    passed_on = get_args_parser().parse_args(options).training_script_args
    assert passed_on == options[options.index("trainyard.node.health_check") + 1 :]


def test_killed_health_check_removes_its_container(health_check: HealthCheckTorchrun, command_file: Path) -> None:
    eventually(lambda: len(read_commands(command_file)) == 1, "the container's start")
    health_check.kill()
    assert read_commands(command_file)[1:] == ["docker rm --force trainyard-job "]


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py")), ids=lambda file: file.stem)
def test_modules_in_the_container_need_only_torch_and_python_3_10(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=MINIMUM_PYTHON)
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    known = {"torch", *(sys.stdlib_module_names - {"tomllib"})}
    foreign = {name for name in imported if name.split(".")[0] not in known}
    assert all(name.startswith("trainyard.node.health_check") for name in foreign)
