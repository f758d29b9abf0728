"""Export at the end of a run of two ranks."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.trainer.conftest import Job, tiny
from trainer.data import open_data
from trainer.export.final_export import mean_loss_of_model
from trainer.export.model_config import build_empty_model
from trainer.export.safetensors_export import load_exported_weights
from trainer.models.pretrained import transformers_name
from trainer.settings import Environment
from trainer.storage import open_storage
from trainyard.models.metrics import Results

pytestmark = pytest.mark.slow


def test_both_formats_have_losses_of_the_same_samples(job: Callable[..., Job], alone: Environment) -> None:
    """Computed on rank 0 in fp32, also if two ranks trained in bf16."""
    changes = {
        "steps": 10,
        "precision": "bf16",
        "parallel": {"data": "fsdp"},
        "checkpoint": {"interval_steps": 10, "export": ["safetensors", "int8"]},
    }
    run = job("export")
    run.configure(**changes)
    process = run.run(2)
    assert process.returncode == 0, process.stderr
    results = Results.model_validate(run.results())
    full, small = results.exports["safetensors"], results.exports["int8"]

    config = tiny(**changes)
    data = open_data(config, replace(alone, world_size=2, local_world_size=2), rank=0, ranks=2)
    micro_batches = config.evaluation.batches * config.batch_size // (2 * config.micro_batch_size)
    held_out = list(data.held_out_batches(micro_batches))
    data.close()
    model = build_empty_model(config.model)
    load_exported_weights(model, open_storage(str(run.folder / "results"), "RESULTS_URI"), rename=transformers_name)
    assert full.validation_loss == pytest.approx(mean_loss_of_model(model, held_out, torch.device("cpu")), abs=1e-5)
    assert full.validation_loss != pytest.approx(results.validation_loss, abs=1e-4)  # of both ranks, in bf16
    assert small.validation_loss == pytest.approx(full.validation_loss, abs=0.02)
    assert small.validation_loss != full.validation_loss
