"""Unit of a health check: restricted as that of an attempt, or with the container of the job."""

import ast
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from trainyard.models.run import HealthCheckRequest, Master
from trainyard.node.agent import health_check as health_check_module
from trainyard.node.agent import job_container, processes
from trainyard.node.agent.health_check import HealthCheckTorchrun
from trainyard.node.agent.job_container import VARIABLE_PREFIX
from trainyard.node.agent.job_process import START_FILE
from trainyard.node.agent.job_unit import REMOVE_CONTAINER, JobUnit, Launch
from trainyard.node.job_user import JobUser

IMAGE = "nvcr.io/nvidia/pytorch:26.10-py3"
PACKAGE = Path(__file__).parents[4] / "trainyard/node/health_check"
MINIMUM_PYTHON = (3, 10)  # of container images in use; nodes have a newer Python
USER = JobUser("trainyard-job", os.getuid(), os.getgid())


class Systemd:
    """Programs of systemd that start nothing and record the options of units."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder, folder / "units"
        folder.mkdir()
        statement = f"print(json.dumps(sys.argv[1:]), file=open({str(self._file)!r}, 'a'))"
        record = f"#!{sys.executable}\nimport json, sys\n{statement}\n"
        for name, program in (("systemd-run", record), ("systemctl", "#!/bin/sh\necho MainPID=0\n")):
            (folder / name).write_text(program)
            (folder / name).chmod(0o755)

    def properties(self) -> list[set[str]]:
        """Properties of each unit that was started."""
        calls = [json.loads(line) for line in self._file.read_text().splitlines()]
        return [{option for option in options if option.startswith("--property=")} for options in calls]


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return Systemd(tmp_path / "bin")


Start = Callable[[str | None], HealthCheckTorchrun]


@pytest.fixture
def start(account: EmulatedAws, systemd: Systemd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts a health check of one node with EFA, in a container if it gets the name of an image."""
    for module in (job_container, processes, health_check_module):
        monkeypatch.setattr(module, "BASE", tmp_path)
    monkeypatch.setattr(health_check_module, "find_job_user", lambda: USER)
    cluster, started = clusters.create_cluster(REGION), list[HealthCheckTorchrun]()
    record = cluster.create_run_record()
    group = cluster.manifest.groups[0].model_copy(update={"gpus": 8, "efa_interfaces": 4})
    node = clusters.worker_identity(REGION, tmp_path)
    master = Master(address=node.address, port=20000)
    request = HealthCheckRequest(number=1, nodes=("i-1",), master=master, requested_at=0.0)

    def start_health_check(image: str | None) -> HealthCheckTorchrun:
        run = record.model_copy(update={"job": record.job.model_copy(update={"container": image})})
        started.append(HealthCheckTorchrun(node, cluster.manifest, group, run, request))
        return started[-1]

    yield start_health_check
    for health_check in started:
        health_check.close()


def read_start(health_check: HealthCheckTorchrun) -> dict[str, Any]:
    """Command and variables of the unit."""
    content: dict[str, Any] = json.loads((health_check.reports.parent / "process" / START_FILE).read_text())
    return content


def test_the_unit_has_the_restrictions_of_an_attempt(start: Start, systemd: Systemd, tmp_path: Path) -> None:
    folder = start(None).reports.parent
    writable = [folder / "logs", folder / "reports", processes.home_folder()]
    JobUnit("run", 1, tmp_path / "attempt", USER).start(["true"], tmp_path, {}, Launch(writable))
    health_check, attempt = systemd.properties()
    assert "--property=NoNewPrivileges=yes" in health_check
    assert health_check ^ attempt == {
        f"--property=ReadWritePaths=-{files}" for files in (folder / "process", tmp_path / "attempt/process")
    }


def test_health_check_uses_python_and_plugin_of_the_image(start: Start) -> None:
    health_check = start(IMAGE)
    command, variables = (read_start(health_check)[name] for name in ("command", "variables"))
    folder = health_check.reports.parent
    writable = (folder / "logs", folder / "reports", processes.home_folder())
    options = [*(f"--writable={each}" for each in writable), IMAGE, "python", "-m", "torch.distributed.run"]
    assert command[1 : len(options) + 1] == options
    assert "trainyard.node.health_check" in command
    assert f"{VARIABLE_PREFIX}NCCL_DEBUG" in variables
    assert f"{VARIABLE_PREFIX}NCCL_NET_PLUGIN" not in variables


def test_torchrun_passes_all_arguments_on(start: Start) -> None:
    """Its parser rejects an argument of the script that abbreviates two options of torchrun, such as --master."""
    command = read_start(start(IMAGE))["command"]
    options = command[command.index("torch.distributed.run") + 1 :]
    passed_on = get_args_parser().parse_args(options).training_script_args
    assert passed_on == options[options.index("trainyard.node.health_check") + 1 :]


def test_the_end_of_the_unit_removes_its_container(start: Start, systemd: Systemd) -> None:
    start(IMAGE)
    (properties,) = systemd.properties()
    assert f"--property=ExecStopPost={REMOVE_CONTAINER}" in properties


@pytest.mark.parametrize("file", sorted(PACKAGE.glob("*.py")), ids=lambda file: file.stem)
def test_modules_in_the_container_need_only_torch_and_python_3_10(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=MINIMUM_PYTHON)
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    known = {"torch", *(sys.stdlib_module_names - {"tomllib"})}
    foreign = {name for name in imported if name.split(".")[0] not in known}
    assert all(name.startswith("trainyard.node.health_check") for name in foreign)
