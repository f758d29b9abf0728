"""Calls to DALI, which needs a GPU: a fake records them."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from tests.trainer.data.conftest import IMAGES, config, write_images
from trainer.data import Data, dali, open_data
from trainer.settings import Environment

CreateEnvironment = Callable[..., Environment]


class Recorder:
    """A fake of nvidia.dali: it records the arguments of operators; a pipeline returns the labels of its inputs."""

    def __init__(self) -> None:
        self.built = 0
        self.fn = MagicMock()
        self.fn.external_source.side_effect = self._source
        self.types = MagicMock()
        self.Pipeline = self._pipeline

    def _source(self, *, source: Any, num_outputs: int, batch: bool) -> list[MagicMock]:
        self._inputs = source
        return [MagicMock() for _ in range(num_outputs)]

    def _pipeline(self, **_: object) -> MagicMock:
        self.built += 1
        pipeline = MagicMock()
        pipeline.run.side_effect = self._run
        return pipeline

    def _run(self) -> tuple[Any, Any]:
        labels = torch.tensor([label.item() for label in next(self._inputs)[1]])
        return (SimpleNamespace(as_tensor=lambda: labels),) * 2


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(dali, "_import_dali", lambda: recorder)
    monkeypatch.setattr(dali.DaliLoader, "_as_tensor", lambda self, output: output)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return recorder


@pytest.fixture
def data(environment_for: CreateEnvironment, tmp_path: Path, recorder: Recorder) -> Data:
    write_images(tmp_path / "data", (5, 3, 11))
    settings = config(model=IMAGES, batch_size=3, micro_batch_size=3, data={"images": "dali"})
    return open_data(settings, environment_for(tmp_path / "data"), rank=0, ranks=1)


def labels(data: Data, number: int) -> list[list[int]]:
    batches = data.held_out_batches(3)
    return [next(batches)[1].tolist() for _ in range(number)]


def test_images_are_not_rotated_by_exif_data(data: Data, recorder: Recorder) -> None:
    """Crops are computed from the stored size."""
    next(data.train_batches(0))
    assert recorder.fn.decoders.image_slice.call_args.kwargs["adjust_orientation"] is False


def test_one_pipeline_serves_every_evaluation(data: Data, recorder: Recorder) -> None:
    first = labels(data, 3)
    assert [labels(data, 3), labels(data, 3)] == [first, first]
    assert len({tuple(batch) for batch in first}) > 1
    assert recorder.built == 1


def test_evaluation_after_an_aborted_evaluation_starts_with_the_first_batch(data: Data) -> None:
    first = labels(data, 3)
    labels(data, 1)
    assert labels(data, 3) == first
