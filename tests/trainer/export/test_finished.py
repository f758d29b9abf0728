"""What a run of two ranks leaves at its end."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.trainer.conftest import Job, tiny
from trainer.data import open_data
from trainer.export.finished import loss_of
from trainer.export.shape import empty
from trainer.export.weights import fill_from
from trainer.settings import Environment
from trainer.storage import open_storage
from trainyard.models.metrics import Results


def test_both_formats_are_held_against_the_same_samples(job: Callable[..., Job], alone: Environment) -> None:
    """By rank 0 in fp32, also where two ranks trained in bf16."""
    changes = {
        "steps": 10,
        "precision": "bf16",
        "parallel": {"data": "fsdp"},
        "checkpoint": {"every": 10, "export": ["safetensors", "int8"]},
    }
    run = job("export")
    run.configure(**changes)
    ended = run.run(2)
    assert ended.returncode == 0, ended.stderr
    results = Results.model_validate(run.results())
    full, small = results.exports["safetensors"], results.exports["int8"]

    config = tiny(**changes)
    data = open_data(config, replace(alone, world_size=2, local_world_size=2), rank=0, ranks=2)
    held_out = list(data.held_out(config.evaluation.batches * config.batch_size // (2 * config.micro_batch_size)))
    data.close()
    model = empty(config.model)
    fill_from(model, open_storage(str(run.folder / "results"), "RESULTS_URI"))
    assert full.validation_loss == pytest.approx(loss_of(model, held_out, torch.device("cpu")), abs=1e-5)
    assert full.validation_loss != pytest.approx(results.validation_loss, abs=1e-4)  # of both ranks, in bf16
    assert small.validation_loss == pytest.approx(full.validation_loss, abs=0.02)
    assert small.validation_loss != full.validation_loss
