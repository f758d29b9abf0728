"""Samples with several documents, and rows of packed conversations."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.problems import rejects
from tests.trainer.data.conftest import LENGTH, config, write_shard
from trainer.data import open_data
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import IGNORED
from trainyard.models.dataset import HAS_LOSS, INDEX, STARTS_DOCUMENT, TokenDataset

END = 9
CreateEnvironment = Callable[..., Environment]


def take(environment: Environment, settings: TrainerConfig, number: int) -> list[tuple[Any, ...]]:
    data = open_data(settings, environment, rank=0, ranks=1)
    try:
        return list(islice(data.train_batches(0), number))
    finally:
        data.close()


def write(folder: Path, tokens: list[int], dtype: str = "uint16", **keys: object) -> None:
    """Write a dataset whose training and held-out tokens are the same."""
    folder.mkdir()
    content = np.array(tokens, dtype=dtype).tobytes()
    shard = write_shard(folder, "a.bin", content, len(tokens))
    index = TokenDataset(
        name="documents", source="numbers", dtype=dtype, vocabulary=100, train=(shard,), validation=(shard,), **keys
    )
    (folder / INDEX).write_text(index.model_dump_json())


def test_documents_start_after_the_end_token(environment_for: CreateEnvironment, tmp_path: Path) -> None:
    write(tmp_path / "data", [1, 2, END, 3, 4, 5, 6, END, 7], end=END)
    ((tokens, targets, cu_seqlens),) = take(
        environment_for(tmp_path / "data"), config(batch_size=1, micro_batch_size=1), 1
    )
    assert tokens.tolist() == [[1, 2, END, 3, 4, 5, 6, END]]
    assert targets.tolist() == [[2, END, IGNORED, 4, 5, 6, END, IGNORED]]
    assert cu_seqlens.tolist() == [0, 3, LENGTH]


def test_samples_of_one_document_have_no_boundaries(environment_for: CreateEnvironment, tmp_path: Path) -> None:
    """Also where the last token ends a document."""
    write(tmp_path / "data", [1, 2, 3, 4, 5, 6, 7, END, 8], end=END)
    (batch,) = take(environment_for(tmp_path / "data"), config(batch_size=1, micro_batch_size=1), 1)
    assert len(batch) == 2


def test_documents_are_not_separated_on_request(environment_for: CreateEnvironment, tmp_path: Path) -> None:
    write(tmp_path / "data", [1, 2, END, 3, 4, 5, 6, END, 7], end=END)
    changes = {"batch_size": 1, "micro_batch_size": 1, "data": {"separate_documents": False}}
    (batch,) = take(environment_for(tmp_path / "data"), config(**changes), 1)
    assert len(batch) == 2
    assert batch[1].tolist() == [[2, END, 3, 4, 5, 6, END, 7]]


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_have_their_targets_and_conversations(
    workers: int, environment_for: CreateEnvironment, tmp_path: Path
) -> None:
    first = [1 | STARTS_DOCUMENT, 2, 3 | HAS_LOSS, 4 | STARTS_DOCUMENT, 5 | HAS_LOSS, 6, 7, 8, END | HAS_LOSS]
    second = [11 | STARTS_DOCUMENT, *(12 + n for n in range(LENGTH - 1)), 20 | HAS_LOSS]
    write(tmp_path / "data", first + second, "uint32", row_tokens=LENGTH + 1)
    changes = {"batch_size": 2, "micro_batch_size": 2, "data": {"workers": workers}}
    ((tokens, targets, cu_seqlens),) = take(environment_for(tmp_path / "data"), config(**changes), 1)
    order = tokens[:, 0].tolist()
    rows = dict(zip(order, zip(tokens.tolist(), targets.tolist(), strict=True), strict=True))
    assert rows[1] == ([1, 2, 3, 4, 5, 6, 7, 8], [IGNORED, 3, IGNORED, 5, IGNORED, IGNORED, IGNORED, END])
    assert rows[11][1] == [IGNORED] * (LENGTH - 1) + [20]
    assert cu_seqlens.tolist() == ([0, 3, 8, 16] if order == [1, 11] else [0, 8, 11, 16])


def test_rows_of_another_length_are_refused(environment_for: CreateEnvironment, tmp_path: Path) -> None:
    write(tmp_path / "data", [1] * 12, "uint32", row_tokens=6)
    with rejects("row_length_mismatch", "5 tokens"):
        take(environment_for(tmp_path / "data"), config(batch_size=1, micro_batch_size=1), 1)
