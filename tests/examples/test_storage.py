"""The storage module of the examples: S3 and a folder behave the same."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch.distributed as dist

from tests.conftest import REGION
from trainyard.aws.s3 import Bucket

ROOT = Path(__file__).parents[2]


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module, imported with the environment of a job's process."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run-1")
    spec = importlib.util.spec_from_file_location("storage", ROOT / "examples/frameworks/storage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_uploaded_file_is_listed_and_downloaded(kind: str, storage: ModuleType, bucket: Bucket, tmp_path: Path) -> None:
    uri = f"s3://{bucket.name}/runs/a" if kind == "s3" else str(tmp_path / "runs/a")
    assert storage.list_keys(uri) == []
    storage.upload(f"{uri}/", "step-1/part", b"one")
    storage.upload(f"{uri}-other", "step-1/part", b"another run's")
    assert storage.list_keys(uri) == storage.list_keys(f"{uri}/") == ["step-1/part"]
    assert storage.download(uri, "step-1/part", tmp_path / "deep/target").read_bytes() == b"one"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["target"]


@pytest.fixture
def checkpoint_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The checkpoint folder of a job with one rank, which is this process."""
    folder = tmp_path / "checkpoints"
    monkeypatch.setenv("CHECKPOINT_URI", str(folder))
    monkeypatch.setenv("LOCAL_RANK", "0")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield folder
    dist.destroy_process_group()


def test_checkpoint_excludes_files_of_the_previous_checkpoint(storage: ModuleType, checkpoint_folder: Path) -> None:
    assert storage.download_checkpoint() is None
    for step in (1, 2):
        storage.CHECKPOINT.mkdir(parents=True)
        (storage.CHECKPOINT / f"part-{step}").write_bytes(b"x")
        storage.upload_checkpoint(step)
        assert (storage.download_checkpoint() / f"part-{step}").read_bytes() == b"x"
    assert storage.list_keys(str(checkpoint_folder)) == [
        *("step-00000001/complete", "step-00000001/part-1"),
        *("step-00000002/complete", "step-00000002/part-2"),
    ]


def test_node_without_files_participates_in_a_checkpoint(storage: ModuleType, checkpoint_folder: Path) -> None:
    """With Lightning only the first node saves files."""
    storage.upload_checkpoint(1)
    assert storage.list_keys(str(checkpoint_folder)) == ["step-00000001/complete"]


def test_incomplete_checkpoint_is_ignored(storage: ModuleType, checkpoint_folder: Path) -> None:
    storage.upload_checkpoint(1)
    storage.upload(str(checkpoint_folder), "step-00000002/part", b"partial")
    storage.upload(f"{checkpoint_folder}/step-00000001", "part", b"whole")
    assert (storage.download_checkpoint() / "part").read_bytes() == b"whole"
