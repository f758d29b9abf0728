"""The same small model with three frameworks: each runs as a job, resumes after SIGKILL, and has the same results.

DeepSpeed is tested without a GPU only up to its error message: on CPUs it compiles an extension, which takes minutes.
"""

import json
import os
import re
import subprocess
import sys
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest
import yaml

from trainyard.config import CONFIG_KEY
from trainyard.config.loader import load_settings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("accelerate", "deepspeed", "lightning")
ON_CPUS = ("accelerate", "lightning")
FOLDER = ROOT / "examples/frameworks"
SECONDS = 110.0
SMALL = ["--batch-size", "4", "--length", "64", "--checkpoint-every", "3"]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+) +# \S.*")


def write_dataset(folder: Path) -> Path:
    """Write Python's argparse module as a dataset of two shards."""
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
    """A training script, run as on a node: in its folder, without the project on the path."""

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
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", f"train_{framework}.py"]
        self.command = [sys.executable, *torchrun, *SMALL]

    def run(self, steps: int) -> dict[str, Any]:
        """Run the job to its end and return its results."""
        command = [*self.command, "--steps", str(steps)]
        process = subprocess.run(
            command, cwd=FOLDER, env=self.environment, capture_output=True, text=True, timeout=SECONDS
        )
        assert process.returncode == 0, process.stderr
        self.lines = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
        results: dict[str, Any] = json.loads((self.folder / "results/results.json").read_text())
        return results

    def kill_after(self, step: int) -> None:
        """Kill all processes of the job after the output of a step."""
        command = [*self.command, "--steps", "100000"]
        with subprocess.Popen(
            command, cwd=FOLDER, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            reached = any(line.startswith(f'{{"step": {step},') for line in process.stdout)
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
        assert reached

    def checkpoints(self) -> list[str]:
        return sorted(mark.parent.name for mark in (self.folder / "checkpoints").glob("*/complete"))


class Completed(Protocol):
    """Runs a job to its end, unless it has run before, and returns it with its results."""

    def __call__(self, framework: str, steps: int = 6) -> tuple[Job, dict[str, Any]]: ...


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("examples") / "data")


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Completed:
    """Jobs that were not interrupted, with their results: one per framework and number of steps."""
    jobs: dict[tuple[str, int], tuple[Job, dict[str, Any]]] = {}

    def run(framework: str, steps: int = 6) -> tuple[Job, dict[str, Any]]:
        if (framework, steps) not in jobs:
            job = Job(framework, tmp_path_factory.mktemp(framework), data)
            jobs[framework, steps] = job, job.run(steps)
        return jobs[framework, steps]

    return run


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_readme_settings_are_a_valid_stack(framework: str) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    (lines,) = [block for block in blocks if f"name: {framework}," in block]
    raw = yaml.safe_load((ROOT / "stacks/Pulumi.custom-job.yaml").read_text())["config"][CONFIG_KEY] | yaml.safe_load(
        lines
    )
    settings = load_settings(raw, ROOT, "README.md")
    assert settings.job.source == "examples/frameworks"
    assert settings.job.command is not None
    assert settings.job.command[0] == f"train_{framework}.py"
    assert settings.job.checkpoint_on_request


@pytest.mark.parametrize("file", ["requirements.txt", "requirements-deepspeed.txt"])
def test_requirements_are_pinned_with_a_reason(file: str) -> None:
    first, *lines = (FOLDER / file).read_text().splitlines()
    assert first.startswith("# ")
    pins = {match[1]: match[2] for line in lines if (match := PIN.match(line))}
    assert len(pins) == len(lines)
    if file == "requirements.txt":
        assert pins.keys() >= set(ON_CPUS)
        assert {name: version(name) for name in pins} == pins  # the tests use the versions that nodes install
    else:
        assert "deepspeed" in pins


@pytest.mark.parametrize("framework", ON_CPUS)
def test_loss_decreases_and_each_step_is_logged(framework: str, completed: Completed) -> None:
    job, results = completed(framework)
    assert [line["step"] for line in job.lines] == [1, 2, 3, 4, 5, 6]
    assert results["last_loss"] < results["first_loss"] - 1
    assert results["last_loss"] == job.lines[-1]["loss"]
    assert job.checkpoints() == ["step-00000003", "step-00000006"]


def test_frameworks_have_the_same_results(completed: Completed) -> None:
    first, second = (dict(completed(framework)[1]) for framework in ON_CPUS)
    assert [first.pop("framework"), second.pop("framework")] == [f"{name} {version(name)}" for name in ON_CPUS]
    assert {name: type(value) for name, value in first.items()} == {name: type(value) for name, value in second.items()}
    for name in ("first_loss", "last_loss"):
        assert first.pop(name) == pytest.approx(second.pop(name), rel=1e-5)
    assert first == second
    assert first["world_size"] == 2


@pytest.mark.parametrize("framework", ON_CPUS)
def test_checkpoint_on_request_and_exact_resume_after_kill(
    framework: str, completed: Completed, tmp_path: Path, data: Path
) -> None:
    job = Job(framework, tmp_path, data)
    job.request.touch()
    job.kill_after(5)
    requested, *saved = (int(name.removeprefix("step-")) for name in job.checkpoints())
    last = saved[-1]  # on a busy machine the job makes more steps before it is killed
    assert (requested, saved) == (1, list(range(3, last + 1, 3)))
    assert not job.request.exists()
    results = job.run(last + 3)
    assert results["started_at"] == last
    assert results | {"started_at": 0} == completed(framework, last + 3)[1]


def test_missing_dataset_is_reported(tmp_path: Path) -> None:
    job = Job("accelerate", tmp_path, tmp_path)
    process = subprocess.run(
        job.command, cwd=FOLDER, env=job.environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert process.returncode == 1
    assert f"DATA_URI={tmp_path}: contains no dataset.json" in process.stderr


def test_deepspeed_without_gpu_exits_with_one_line(tmp_path: Path, data: Path) -> None:
    job = Job("deepspeed", tmp_path / "job", data)
    command = [sys.executable, "train_deepspeed.py"]
    process = subprocess.run(
        command, cwd=FOLDER, env=job.environment | {"TORCHELASTIC_RUN_ID": "x"}, capture_output=True, text=True
    )
    assert (process.returncode, process.stdout, len(process.stderr.splitlines())) == (2, "", 1)
    assert "needs an NVIDIA GPU" in process.stderr
    assert not (tmp_path / "job").exists()
