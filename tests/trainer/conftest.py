"""Fixtures of the trainer's tests: a tiny dataset and configuration, an S3 server, and the trainer as a program."""

import argparse
import hashlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer.settings import Environment
from trainyard.config.training import TrainerConfig
from trainyard.models.dataset import INDEX, Shard, TokenDataset

ROOT = Path(__file__).parents[2]
TINY: dict[str, Any] = {
    "model": {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate_size": 64, "sequence_length": 32},
    "optimizer": {"warmup_steps": 4},
    "steps": 20,
    "batch_size": 12,
    "micro_batch_size": 2,
    "precision": "fp32",
    "checkpoint": {"interval_steps": 10},
    "evaluation": {"interval_steps": 10},
    "threads": 1,
}


def tiny(**changes: Any) -> TrainerConfig:
    """Return the tiny configuration with changes."""
    return TrainerConfig.model_validate(TINY | changes)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("dataset"))


def write_dataset(folder: Path, end: int | None = None) -> Path:
    """Write real text in two training shards and one validation shard. `end`: the token that ends a document."""
    folder.mkdir(exist_ok=True)
    text = Path(argparse.__file__).read_bytes()
    pieces = {"a.bin": text[:30_000], "b.bin": text[30_000:50_000], "held-out.bin": text[50_000:60_000]}
    shards = []
    for key, piece in pieces.items():
        (folder / key).write_bytes(piece)
        sha256 = hashlib.sha256(piece).hexdigest()
        shards.append(Shard(key=key, count=len(piece), bytes=len(piece), sha256=sha256))
    index = TokenDataset(
        name="tiny", source="argparse.py", train=tuple(shards[:2]), validation=tuple(shards[2:]), end=end
    )
    (folder / INDEX).write_text(index.model_dump_json())
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def moto_server() -> Iterator[Any]:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def s3_environment(moto_server: Any) -> dict[str, str]:
    """Environment variables for the S3 server of the tests, which has the bucket `runs`."""
    host, port = moto_server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_REGION": "eu-central-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        import boto3

        boto3.client("s3", region_name="eu-central-1").create_bucket(
            Bucket="runs", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
        )
    return variables


@pytest.fixture
def s3(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of the tests' S3 server, which is also configured in this process's environment."""
    import boto3

    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    return boto3.client("s3", region_name="eu-central-1")


class Job:
    """A run's folder, and the trainer started as a user starts it."""

    def __init__(self, folder: Path, dataset: Path, cache: Path, extra: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.config = folder / "config.json"
        self.config.write_text(json.dumps(TINY))
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "GLOO_SOCKET_IFNAME": "lo",
            "DATA_URI": str(dataset),
            "CHECKPOINT_URI": str(folder / "checkpoints"),
            "RESULTS_URI": str(folder / "results"),
            "METRICS_DIR": str(folder / "metrics"),
            "TRAINYARD_CACHE": str(cache),
            "TRAINYARD_RUN": folder.name,
            **(extra or {}),
        }

    def configure(self, **changes: Any) -> None:
        self.config.write_text(json.dumps(TINY | changes))

    def command(self, processes: int) -> list[str]:
        trainer = ["-m", "trainer", "--config", str(self.config)]
        if processes == 1:
            return [sys.executable, *trainer]
        return [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={processes}",
            *trainer,
        ]

    def run(self, processes: int, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(processes), env=self.environment | variables, capture_output=True, text=True, timeout=100
        )

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics/metrics.jsonl").read_text().splitlines()]

    def results(self) -> dict[str, Any]:
        results: dict[str, Any] = json.loads((self.folder / "results/results.json").read_text())
        return results


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory, dataset: Path, cache: Path) -> Callable[..., Job]:
    """Factory of jobs, each with a separate folder; `extra`: additional environment variables."""

    def create(name: str, extra: dict[str, str] | None = None) -> Job:
        return Job(tmp_path_factory.mktemp(name), dataset, cache, extra)

    return create


@pytest.fixture(autouse=True)
def _capture_log(caplog: pytest.LogCaptureFixture) -> None:
    """Capture log records from INFO on."""
    caplog.set_level(logging.INFO, "trainer")


@pytest.fixture
def alone(tmp_path: Path, dataset: Path, cache: Path) -> Environment:
    """The environment of a job that runs in this process."""
    return Environment(
        data_uri=str(dataset),
        checkpoint_uri=str(tmp_path / "checkpoints"),
        results_uri=str(tmp_path / "results"),
        resume_uri=None,
        run="standalone",
        attempt=1,
        metrics_dir=tmp_path / "metrics",
        checkpoint_request=tmp_path / "checkpoint-request",
        profile_request=tmp_path / "profile-request",
        memory_dir=None,
        cache_dir=cache,
        rank=0,
        local_rank=0,
        world_size=1,
        local_world_size=1,
    )
