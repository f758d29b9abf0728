"""A check of nodes whose job runs in a container: in that container, of which nothing is left."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.polling import eventually
from trainyard.models.run import Check
from trainyard.node.agent import health_check as check_module
from trainyard.node.agent import processes
from trainyard.node.agent.health_check import CheckRun

IMAGE = "nvcr.io/nvidia/pytorch:26.10-py3"
VERIFICATION = Path(__file__).parents[4] / "trainyard/node/health_check"
OLDEST = (3, 10)  # of the Pythons in images that are in use; our own nodes have a newer one


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the command lines of `in-container`, which never ends by itself, and of `docker`."""
    told, programs = tmp_path / "asked", tmp_path / "bin"
    programs.mkdir()
    for name, then in (("in-container", "exec sleep 300"), ("docker", "exit 0")):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@" "${{NCCL_NET_PLUGIN-}}" >> {told}\n{then}\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for module in (processes, check_module):
        monkeypatch.setattr(module, "BASE", tmp_path)
    return told


@pytest.fixture
def check(account: EmulatedAws, asked: Path, tmp_path: Path) -> Iterator[CheckRun]:
    """Of one node with EFA."""
    cluster = clusters.build(REGION)
    record = cluster.record()
    group = cluster.manifest.groups[0].model_copy(update={"gpus": 8, "efa_interfaces": 4})
    run = record.model_copy(update={"job": record.job.model_copy(update={"container": IMAGE})})
    node = clusters.worker(REGION, tmp_path)
    made = CheckRun(node, cluster.manifest, group, run, Check(number=1, nodes=("i-1",), ordered=0.0))
    yield made
    made.kill()
    made.close()


def lines(asked: Path) -> list[str]:
    return asked.read_text().splitlines() if asked.exists() else []


def test_the_image_is_checked_by_its_own_python_and_plugin(check: CheckRun, asked: Path) -> None:
    eventually(lambda: len(lines(asked)) == 1, "the container's start")
    (started,) = lines(asked)
    assert started.startswith(f"in-container {IMAGE} python -m torch.distributed.run ")
    assert " -m trainyard.node.health_check " in started
    assert not started.endswith(" ofi")


def test_a_check_that_is_cut_leaves_no_container(check: CheckRun, asked: Path) -> None:
    eventually(lambda: len(lines(asked)) == 1, "the container's start")
    check.kill()
    assert lines(asked)[1:] == ["docker rm --force trainyard-job "]


@pytest.mark.parametrize("file", sorted(VERIFICATION.glob("*.py")), ids=lambda file: file.stem)
def test_what_runs_in_it_needs_torch_and_no_new_python(file: Path) -> None:
    tree = ast.parse(file.read_text(), feature_version=OLDEST)
    imported = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    known = {"torch", *(sys.stdlib_module_names - {"tomllib"})}
    foreign = {name for name in imported if name.split(".")[0] not in known}
    assert all(name.startswith("trainyard.node.health_check") for name in foreign)
