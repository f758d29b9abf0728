"""The same small model by three frameworks: each runs as a job, goes on after a kill, and leaves the same results.

DeepSpeed is asked here only what it says without a GPU: on CPUs it first compiles an extension, which takes minutes.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from trainyard.base import CONFIG_KEY
from trainyard.config.loader import read_settings

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("accelerate", "deepspeed", "lightning")
ON_CPUS = ("accelerate", "lightning")
SHARED = ("model.py", "data.py", "storage.py")
SECONDS = 110.0
SMALL = ["--batch-size", "4", "--length", "64", "--checkpoint-every", "3"]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+) +# \S.*")


def a_dataset(folder: Path) -> Path:
    """Python's argparse in two shards, as the contract has it."""
    folder.mkdir()
    text = Path(sys.modules["argparse"].__file__ or "").read_bytes()
    shards = []
    for key, piece in {"a.bin": text[:20_000], "b.bin": text[20_000:50_000]}.items():
        (folder / key).write_bytes(piece)
        shards.append({"key": key, "count": len(piece), "bytes": len(piece), "sha256": sha256(piece).hexdigest()})
    index = {"name": "small", "source": "argparse.py", "train": shards[:1], "validation": shards[1:]}
    (folder / "dataset.json").write_text(json.dumps(index))
    return folder


class Job:
    """An example's folder, run as an attempt on a node runs it: from within, and with no other code of ours."""

    def __init__(self, framework: str, folder: Path, data: Path) -> None:
        self.framework, self.folder, self.request = framework, folder, folder / "checkpoint-request"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTHONPATH"))},
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "DATA_URI": str(data),
            "CHECKPOINT_URI": str(folder / "checkpoints"),
            "RESULTS_URI": str(folder / "results"),
            "CHECKPOINT_REQUEST": str(self.request),
            "TRAINYARD_CACHE": str(folder / "cache"),
        }
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
        self.command = [sys.executable, *torchrun, *SMALL]
        self.place = ROOT / "examples" / framework

    def run(self, steps: int) -> dict[str, Any]:
        """To the end; its results."""
        command = [*self.command, "--steps", str(steps)]
        ended = subprocess.run(
            command, cwd=self.place, env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert ended.returncode == 0, ended.stderr
        self.lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
        found: dict[str, Any] = json.loads((self.folder / "results/results.json").read_text())
        return found

    def killed_after(self, step: int) -> None:
        """With all its processes, when it has told of that step."""
        command = [*self.command, "--steps", "100000"]
        with subprocess.Popen(
            command, cwd=self.place, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            told = any(line.startswith(f'{{"step": {step},') for line in process.stdout)
            for one in psutil.Process(process.pid).children(recursive=True):
                one.kill()
            process.kill()
        assert told

    def checkpoints(self) -> list[str]:
        return sorted(mark.parent.name for mark in (self.folder / "checkpoints").glob("*/complete"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_dataset(tmp_path_factory.mktemp("examples") / "data")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Callable[[str], tuple[Job, dict[str, Any]]]:
    """Six steps of a framework, run once."""
    made: dict[str, tuple[Job, dict[str, Any]]] = {}

    def run(framework: str) -> tuple[Job, dict[str, Any]]:
        if framework not in made:
            job = Job(framework, tmp_path_factory.mktemp(framework), data)
            made[framework] = job, job.run(6)
        return made[framework]

    return run


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_lines_that_its_page_gives_make_a_stack(framework: str) -> None:
    page = (ROOT / "examples" / framework / "README.md").read_text()
    (lines,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    raw = yaml.safe_load((ROOT / "stacks/Pulumi.own-job.yaml").read_text())["config"][CONFIG_KEY] | yaml.safe_load(
        lines
    )
    settings = read_settings(raw, ROOT, "the page")
    assert settings.job.source == f"examples/{framework}"
    assert settings.job.checkpoint_on_request


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_it_requires_is_pinned_and_each_pin_says_why(framework: str) -> None:
    first, *lines = (ROOT / "examples" / framework / "requirements.txt").read_text().splitlines()
    assert first.startswith("# ")
    pins = {found[1]: found[2] for line in lines if (found := PIN.match(line))}
    assert len(pins) == len(lines)
    assert framework in pins
    if framework in ON_CPUS:
        assert {name: version(name) for name in pins} == pins  # what is tried here is what nodes install


@pytest.mark.parametrize("name", SHARED)
def test_what_they_share_is_the_same_in_each(name: str) -> None:
    one, *others = [(ROOT / "examples" / framework / name).read_text() for framework in FRAMEWORKS]
    assert others == [one, one]


@pytest.mark.parametrize("framework", ON_CPUS)
def test_it_learns_and_tells_each_step(framework: str, straight: Callable[[str], tuple[Job, dict[str, Any]]]) -> None:
    job, results = straight(framework)
    assert [line["step"] for line in job.lines] == [1, 2, 3, 4, 5, 6]
    assert results["last_loss"] < results["first_loss"] - 1
    assert results["last_loss"] == job.lines[-1]["loss"]
    assert job.checkpoints() == ["step-00000003", "step-00000006"]


def test_all_leave_the_same_results(straight: Callable[[str], tuple[Job, dict[str, Any]]]) -> None:
    one, other = (dict(straight(framework)[1]) for framework in ON_CPUS)
    assert [one.pop("framework"), other.pop("framework")] == [f"{name} {version(name)}" for name in ON_CPUS]
    assert {name: type(value) for name, value in one.items()} == {name: type(value) for name, value in other.items()}
    for name in ("first_loss", "last_loss"):
        assert one.pop(name) == pytest.approx(other.pop(name), rel=1e-5)
    assert one == other
    assert one["world_size"] == 2


@pytest.mark.parametrize("framework", ON_CPUS)
def test_it_saves_when_asked_and_goes_on_after_a_kill_as_if_nothing_had_been(
    framework: str, straight: Callable[[str], tuple[Job, dict[str, Any]]], tmp_path: Path, data: Path
) -> None:
    job = Job(framework, tmp_path, data)
    job.request.touch()
    job.killed_after(5)
    assert job.checkpoints() == ["step-00000001", "step-00000003"]
    assert not job.request.exists()
    results = job.run(6)
    assert results["started_at"] == 3
    assert results | {"started_at": 0} == straight(framework)[1]


def test_a_place_without_a_dataset_is_told_in_one_line(tmp_path: Path) -> None:
    job = Job("accelerate", tmp_path, tmp_path)
    ended = subprocess.run(
        job.command, cwd=job.place, env=job.environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert ended.returncode == 1
    assert f"DATA_URI={tmp_path}: holds no dataset.json" in ended.stderr


def test_deepspeed_says_in_one_line_that_it_needs_a_gpu(tmp_path: Path, data: Path) -> None:
    job = Job("deepspeed", tmp_path / "job", data)
    command = [sys.executable, "train.py"]
    ended = subprocess.run(
        command, cwd=job.place, env=job.environment | {"TORCHELASTIC_RUN_ID": "x"}, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)
    assert "needs an NVIDIA GPU" in ended.stderr
    assert not (tmp_path / "job").exists()
