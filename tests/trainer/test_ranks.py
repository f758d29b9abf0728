"""A rank's device: what its GPU can't do is told before anything else."""

from dataclasses import replace

import pytest
import torch

from tests.trainer.conftest import tiny
from trainer.ranks import choose_device
from trainer.settings import Environment
from trainyard.base import InputError


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A T4, as far as the choice asks for it."""
    found = {"is_available": True, "device_count": 1, "get_device_capability": (7, 5), "get_device_name": "Tesla T4"}
    for name, value in found.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)
    return monkeypatch


@pytest.mark.parametrize("precision", ["bf16", "float8"])
def test_a_precision_that_the_gpu_lacks_is_refused_with_fp16_as_the_way_out(
    gpu: pytest.MonkeyPatch, alone: Environment, precision: str
) -> None:
    given = tiny(precision=precision, model={"dim": 32, "heads": 2, "kv_heads": 2, "hidden": 32})
    with pytest.raises(InputError, match=rf"(?s)config.precision.*{precision}.*Tesla T4 of 7.5.*Take fp16"):
        choose_device(given, alone)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_what_it_has_is_taken(gpu: pytest.MonkeyPatch, alone: Environment, precision: str) -> None:
    assert choose_device(tiny(precision=precision), alone) == torch.device("cuda", 0)


def test_bf16_is_for_ampere_and_later(gpu: pytest.MonkeyPatch, alone: Environment) -> None:
    gpu.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    choose_device(tiny(precision="bf16"), alone)


def test_a_process_without_a_gpu_of_its_own_is_refused(gpu: pytest.MonkeyPatch, alone: Environment) -> None:
    with pytest.raises(InputError, match="this node has 1 GPUs"):
        choose_device(tiny(precision="fp16"), replace(alone, local_rank=1))
