"""An out-of-memory error ends in one message with the settings that reduce memory."""

import os
import subprocess
import sys

import pytest
import torch

from tests.trainer.conftest import ROOT, TINY, tiny
from trainer.failures.out_of_memory import OutOfMemoryError, describe_memory, explain_out_of_memory, memory_suggestions
from trainyard.config.training import TrainerConfig
from trainyard.config.training.parallel import Layout

CPU = torch.device("cpu")
SINGLE = Layout(pipeline=1, replicate=1, shard=1, tensor=1, accumulation=2)


def keys(config: TrainerConfig, layout: Layout = SINGLE, cached: int = 0) -> list[str]:
    return [suggestion.split()[0] for suggestion in memory_suggestions(config, layout, 2**30, cached)]


def test_all_applicable_settings_are_suggested() -> None:
    config = tiny(micro_batch_size=6, batch_size=48)
    layout = Layout(pipeline=1, replicate=4, shard=1, tensor=1, accumulation=2)
    suggestions = list(memory_suggestions(config, layout, 2**30))
    assert suggestions[0] == "micro_batch_size 6 -> 3: batch_size remains 48, in 4 micro-batches per rank instead of 2"
    assert "memory.loss_chunk_tokens 2048 -> 256: the logits of fewer than 192 tokens are in memory" in suggestions
    assert any("16.00 GiB on each rank, and would use 4.00 GiB on each of 4" in text for text in suggestions)
    assert keys(config, layout) == [
        *("micro_batch_size", "precision", "memory.loss_chunk_tokens", "memory.activation_checkpointing"),
        *("parallel.data", "more"),
    ]


def test_frozen_weights_have_no_optimizer_state() -> None:
    model = {**TINY["model"], "path": "/m", "weights": True}
    *_, last = memory_suggestions(tiny(model=model, lora={}, precision="bf16"), SINGLE, 2**30)
    assert "optimizer use 2.00 GiB" in last


def test_active_settings_are_not_suggested() -> None:
    config = tiny(
        micro_batch_size=1,
        precision="bf16",
        memory={"loss_chunk_tokens": 128, "activation_checkpointing": "full"},
        parallel={"data": "fsdp"},
    )
    assert keys(config) == ["more"]
    images = tiny(model={"kind": "images"}, micro_batch_size=1, precision="bf16")
    assert keys(images) == ["more"]


def test_suggested_micro_batch_size_divides_the_batch() -> None:
    for micro in range(2, 60):
        config = tiny(micro_batch_size=micro, batch_size=2 * micro)
        (first, *_) = memory_suggestions(config, SINGLE, 1)
        suggested = int(first.split(" -> ")[1].split(":")[0])
        assert micro % suggested == 0
        assert suggested < micro


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...\nmore"),
        MemoryError(),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        torch.AcceleratorError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("Registering memory failed with cudaError: 2. It's possible that this is an asynchronous error"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        torch.distributed.DistBackendError(
            "NCCL error in: NCCLUtils.cpp:94, unhandled cuda error, NCCL version 2.27.7\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"
        ),
    ],
)
def test_out_of_memory_errors_are_converted(error: BaseException) -> None:
    def fail() -> None:
        with explain_out_of_memory(tiny(), SINGLE, CPU, "rank 3 (host a, local rank 1, CPU)", 1000):
            raise error

    with pytest.raises(OutOfMemoryError, match=r"^out of memory on rank 3 \(host a, local rank 1, CPU\): ") as caught:
        fail()
    assert (
        "Settings that reduce memory, the cheapest first:\n  - micro_batch_size 2 -> 1: batch_size remains 12"
        in str(caught.value)
    )
    assert "GiB resident in this process" in str(caught.value)


@pytest.mark.parametrize(
    "message",
    ["shapes do not match", "CUDA error: an illegal memory access was encountered", "CUBLAS_STATUS_EXECUTION_FAILED"],
)
def test_other_errors_are_not_converted(message: str) -> None:
    def fail() -> None:
        with explain_out_of_memory(tiny(), SINGLE, CPU, "rank 0", 1000):
            raise RuntimeError(message)

    with pytest.raises(RuntimeError, match=message):
        fail()


def test_message_has_the_line_about_memory() -> None:
    def fail() -> None:
        with explain_out_of_memory(tiny(), SINGLE, CPU, "rank 0", 1000):
            raise RuntimeError("NCCL error in: NCCLUtils.cpp:94\nLast error:\nCuda failure 'out of memory'")

    with pytest.raises(OutOfMemoryError, match=r"^out of memory on rank 0: Cuda failure 'out of memory'\n"):
        fail()


def test_gpu_memory_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 * gib, 80 * gib))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 60 * gib)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 75 * gib)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 70 * gib)
    assert describe_memory(torch.device("cuda", 0)) == (
        "GPU memory: 80.00 GiB: 60.00 in tensors (peak 70.00), 15.00 reserved by torch's allocator, 4.00 used otherwise"
        " (CUDA, NCCL, other processes), 1.00 free"
    )


def test_fragmentation_is_suggested_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    assert keys(tiny(), cached=15 * 2**30)[0] == "the"
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True: 15.0 GiB" in next(
        memory_suggestions(tiny(), SINGLE, 1, 15 * 2**30)
    )


def test_active_expandable_segments_are_not_suggested(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer enables them, unless the variable is set."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert keys(tiny(), cached=15 * 2**30)[0] != "the"


# An allocation above the limit of the process's address space.
PROGRAM = """
import resource, sys, torch
from tests.trainer.conftest import tiny
from tests.trainer.failures.test_out_of_memory import SINGLE
from trainer import __main__ as program
from trainer.failures.out_of_memory import explain_out_of_memory

def train(config, environment):
    with explain_out_of_memory(config, SINGLE, torch.device("cpu"), "rank 0 (test)", 1000):
        resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
        torch.empty(2**36).fill_(1)

status, error = program._run(train, tiny(), None)
print(error, file=sys.stderr)
sys.exit(status)
"""


def test_process_exits_with_status_1_and_one_message() -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.returncode == 1, process.stderr
    assert "Traceback" not in process.stderr
    assert process.stderr.startswith("out of memory on rank 0 (test): ")
