"""A small corpus, the command-line program, and functions that read a dataset."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trainer.prepare.dataset import Request
from trainyard.models.dataset import INDEX, Shard, TokenDataset

ROOT = Path(__file__).parents[3]
Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """A file of JSON lines with 300 different documents."""
    file = tmp_path / "corpus" / "a.jsonl"
    file.parent.mkdir()
    texts = [f"document {number} of many: " + "word " * (number % 17) for number in range(300)]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


@pytest.fixture
def request_to(tmp_path: Path) -> Callable[..., Request]:
    """Creates requests. The name selects the target and the work folder."""

    def create(name: str = "out", *, held_out: float = 0.2, workers: int = 1, replace: bool = False) -> Request:
        work = tmp_path / f"{name}-work"
        return Request(
            target=str(tmp_path / name), name="d", held_out=held_out, workers=workers, work=work, replace=replace
        )

    return create


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "200"}


@pytest.fixture
def program(environment: dict[str, str], tmp_path: Path) -> Program:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trainer.prepare", *arguments],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


def read_index(target: str | Path) -> TokenDataset:
    return TokenDataset.model_validate_json((Path(target) / INDEX).read_bytes())


def read_ids(target: str | Path, shards: tuple[Shard, ...]) -> list[int]:
    """Return the token ids of shards."""
    dtype = read_index(target).dtype
    return [int(id) for shard in shards for id in np.fromfile(Path(target) / shard.key, dtype)]


def read_texts(target: str | Path, shards: tuple[Shard, ...]) -> list[str]:
    """Return the documents of shards that the tokenizer `bytes` has written."""
    return bytes(read_ids(target, shards)).decode().split("\0")[:-1]
