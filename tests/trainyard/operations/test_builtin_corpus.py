"""The built-in corpus is complete, reproducible and committed by its index."""

import hashlib
from pathlib import Path

import pytest

from tests.problems import rejects
from trainyard.aws.s3 import Bucket
from trainyard.models.dataset import TokenDataset
from trainyard.operations import builtin_corpus as corpus


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A standard library of forty modules, with folders that the corpus excludes."""
    for number in range(40):
        (tmp_path / f"module{number}.py").write_text(f"value = {number}\n" * 10)
    for folder in ("test", "site-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "excluded.py").write_text("EXCLUDED")
    return tmp_path


def read(bucket: Bucket, index: TokenDataset) -> tuple[bytes, bytes]:
    train, validation = (
        b"".join(bucket.read(f"datasets/d/{shard.key}") for shard in part) for part in (index.train, index.validation)
    )
    return train, validation


def test_every_module_is_in_a_single_split(bucket: Bucket, library: Path) -> None:
    train, validation = read(bucket, corpus.upload_corpus(bucket, "datasets/d/", lambda text: None, library))
    library_content = b"".join(file.read_bytes() + b"\n" for file in library.glob("*.py"))
    assert len(train) + len(validation) == len(library_content)
    assert validation.count(b"\n\n") == 2
    assert b"EXCLUDED" not in train + validation


def test_index_matches_the_shards(bucket: Bucket, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SHARD_BYTES", 512)
    index = corpus.upload_corpus(bucket, "datasets/d/", lambda text: None, library)
    assert len(index.train) > 2
    for shard in index.train:
        content = bucket.read(f"datasets/d/{shard.key}")
        assert (len(content), hashlib.sha256(content).hexdigest()) == (shard.count, shard.sha256)
        assert shard.bytes == shard.count


def test_corpus_does_not_depend_on_the_librarys_folder(
    bucket: Bucket, library: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "lib"
    library.rename(other)
    expected = corpus.upload_corpus(bucket, "datasets/d/", lambda text: None, other)
    other.rename(library)
    assert corpus.upload_corpus(bucket, "datasets/d/", lambda text: None, library) == expected


def test_interrupted_upload_writes_no_index(bucket: Bucket, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = bucket.write, 0

    def interrupt(key: str, content: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError("interrupted")
        write(key, content)

    monkeypatch.setattr(bucket, "write", interrupt)
    with pytest.raises(OSError, match="interrupted"):
        corpus.upload_corpus(bucket, "datasets/d/", lambda text: None, library)
    assert bucket.find("datasets/d/dataset.json") is None


def test_python_without_library_sources_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    with rejects("corpus_source_missing", str(tmp_path)):
        corpus.upload_corpus(bucket, "datasets/d/", lambda text: None, tmp_path)
