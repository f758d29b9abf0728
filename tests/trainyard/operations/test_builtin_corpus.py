"""The built-in corpus: whole, the same everywhere, and committed by its index."""

import hashlib
from pathlib import Path

import pytest

from trainyard.aws.s3 import Bucket
from trainyard.base import InputError
from trainyard.models.dataset import TokenDataset
from trainyard.operations import builtin_corpus as corpus


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A standard library of forty modules, and what does not belong to it."""
    for number in range(40):
        (tmp_path / f"module{number}.py").write_text(f"value = {number}\n" * 10)
    for folder in ("test", "site-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "left_out.py").write_text("LEFT OUT")
    return tmp_path


def read(bucket: Bucket, index: TokenDataset) -> tuple[bytes, bytes]:
    train, held_out = (
        b"".join(bucket.read(f"datasets/d/{shard.key}") for shard in part) for part in (index.train, index.validation)
    )
    return train, held_out


def test_every_module_is_in_one_split(bucket: Bucket, library: Path) -> None:
    train, held_out = read(bucket, corpus.prepare(bucket, "d", lambda text: None, library))
    whole = b"".join(file.read_bytes() + b"\n" for file in library.glob("*.py"))
    assert len(train) + len(held_out) == len(whole)
    assert held_out.count(b"\n\n") == 2
    assert b"LEFT OUT" not in train + held_out


def test_the_index_is_true_of_the_shards(bucket: Bucket, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SHARD_BYTES", 512)
    index = corpus.prepare(bucket, "d", lambda text: None, library)
    assert len(index.train) > 2
    for shard in index.train:
        content = bucket.read(f"datasets/d/{shard.key}")
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard.count, shard.sha256)
        assert shard.bytes == shard.count


def test_it_is_the_same_in_another_folder(
    bucket: Bucket, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "lib"
    library.rename(other)
    first = corpus.prepare(bucket, "d", lambda text: None, other)
    other.rename(library)
    assert corpus.prepare(bucket, "d", lambda text: None, library) == first


def test_a_cut_upload_does_not_count(bucket: Bucket, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = bucket.write, 0

    def cut(key: str, content: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("cut")
        real(key, content)

    monkeypatch.setattr(bucket, "write", cut)
    with pytest.raises(OSError, match="cut"):
        corpus.prepare(bucket, "d", lambda text: None, library)
    assert bucket.find("datasets/d/dataset.json") is None


def test_a_python_without_sources_is_told(bucket: Bucket, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="this Python has no library sources"):
        corpus.prepare(bucket, "d", lambda text: None, tmp_path)
