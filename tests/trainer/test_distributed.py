"""Choice of a rank's device."""

from dataclasses import replace

import pytest
import torch

from tests.problems import rejects
from tests.trainer.conftest import tiny
from trainer.distributed import configure_device
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A simulated T4."""
    results = {"is_available": True, "device_count": 1, "get_device_capability": (7, 5), "get_device_name": "Tesla T4"}
    for name, value in results.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)
    return monkeypatch


@pytest.mark.parametrize("precision", ["bf16", "float8"])
def test_unsupported_precision_is_rejected_and_fp16_suggested(
    gpu: pytest.MonkeyPatch, alone: Environment, precision: str
) -> None:
    config = tiny(precision=precision, low_precision={"minimum_features": 16})
    with rejects("precision_unsupported", precision, "Tesla T4 of compute capability 7.5", "fp16"):
        configure_device(config, alone)


def blackwell_config(precision: str) -> TrainerConfig:
    model = {"dim": 128, "heads": 1, "kv_heads": 1, "intermediate_size": 128, "sequence_length": 128}
    low_precision = {"minimum_features": 128}
    return tiny(precision=precision, model=model, parallel={"data": "fsdp"}, low_precision=low_precision)


@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4"])
def test_precisions_of_blackwell_are_rejected_on_hopper(
    gpu: pytest.MonkeyPatch, alone: Environment, precision: str
) -> None:
    gpu.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with rejects("precision_unsupported", precision, "compute capability 10.x", "Set it to float8"):
        configure_device(blackwell_config(precision), alone)


@pytest.mark.parametrize("precision", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("capability", [(10, 0), (10, 3)])  # B200, B300
def test_precisions_of_blackwell_are_accepted_on_blackwell(
    gpu: pytest.MonkeyPatch, alone: Environment, precision: str, capability: tuple[int, int]
) -> None:
    gpu.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert configure_device(blackwell_config(precision), alone) == torch.device("cuda", 0)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_supported_precision_uses_the_gpu(gpu: pytest.MonkeyPatch, alone: Environment, precision: str) -> None:
    assert configure_device(tiny(precision=precision), alone) == torch.device("cuda", 0)


def test_bf16_is_accepted_from_compute_capability_8_0(gpu: pytest.MonkeyPatch, alone: Environment) -> None:
    gpu.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    configure_device(tiny(precision="bf16"), alone)


ASYNC_TENSOR = {"parallel": {"tensor": 2, "async_tensor": True}}


def test_asynchronous_tensor_parallelism_is_rejected_without_gpu(
    monkeypatch: pytest.MonkeyPatch, alone: Environment
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with rejects("async_tensor_unsupported", "config.parallel.async_tensor", "no GPU", "Remove it"):
        configure_device(tiny(**ASYNC_TENSOR), alone)


def test_asynchronous_tensor_parallelism_is_rejected_on_amd_gpus(gpu: pytest.MonkeyPatch, alone: Environment) -> None:
    gpu.setattr(torch.version, "hip", "7.0")
    with rejects("async_tensor_unsupported", "config.parallel.async_tensor", "Remove it"):
        configure_device(tiny(**ASYNC_TENSOR), alone)


def test_asynchronous_tensor_parallelism_is_accepted_on_nvidia_gpus(
    gpu: pytest.MonkeyPatch, alone: Environment
) -> None:
    assert configure_device(tiny(**ASYNC_TENSOR), alone) == torch.device("cuda", 0)


def test_more_processes_than_gpus_are_rejected(gpu: pytest.MonkeyPatch, alone: Environment) -> None:
    with rejects("gpu_per_process_missing", "1 GPUs"):
        configure_device(tiny(precision="fp16"), replace(alone, local_rank=1))
