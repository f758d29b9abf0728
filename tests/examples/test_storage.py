"""The examples' places: S3 and a folder give the same."""

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
    """The module as a job's process has it."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run-1")
    found = importlib.util.spec_from_file_location("storage", ROOT / "examples/accelerate/storage.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_what_is_written_is_listed_and_brought_whole(
    kind: str, storage: ModuleType, bucket: Bucket, tmp_path: Path
) -> None:
    uri = f"s3://{bucket.name}/runs/a" if kind == "s3" else str(tmp_path / "runs/a")
    assert storage.keys(uri) == []
    storage.write(f"{uri}/", "step-1/part", b"one")
    storage.write(f"{uri}-other", "step-1/part", b"another run's")
    assert storage.keys(uri) == storage.keys(f"{uri}/") == ["step-1/part"]
    assert storage.fetch(uri, "step-1/part", tmp_path / "deep/here").read_bytes() == b"one"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["here"]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The one rank of a job; where its checkpoints go."""
    place = tmp_path / "checkpoints"
    monkeypatch.setenv("CHECKPOINT_URI", str(place))
    monkeypatch.setenv("LOCAL_RANK", "0")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield place
    dist.destroy_process_group()


def test_a_checkpoint_holds_what_was_saved_and_nothing_of_the_one_before(storage: ModuleType, alone: Path) -> None:
    assert storage.restore() is None
    for step in (1, 2):
        storage.CHECKPOINT.mkdir(parents=True)
        (storage.CHECKPOINT / f"part-{step}").write_bytes(b"x")
        storage.publish(step)
        assert (storage.restore() / f"part-{step}").read_bytes() == b"x"
    assert storage.keys(str(alone)) == [
        *("step-00000001/complete", "step-00000001/part-1"),
        *("step-00000002/complete", "step-00000002/part-2"),
    ]


def test_a_node_that_has_nothing_to_save_takes_part(storage: ModuleType, alone: Path) -> None:
    """Of Lightning's checkpoint only the first node has anything."""
    storage.publish(1)
    assert storage.keys(str(alone)) == ["step-00000001/complete"]


def test_one_that_is_not_complete_does_not_count(storage: ModuleType, alone: Path) -> None:
    storage.publish(1)
    storage.write(str(alone), "step-00000002/part", b"cut")
    storage.write(f"{alone}/step-00000001", "part", b"whole")
    assert (storage.restore() / "part").read_bytes() == b"whole"
