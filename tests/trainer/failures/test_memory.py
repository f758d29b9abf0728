"""Out of memory ends in one message that names what to change, with today's numbers."""

import os
import subprocess
import sys

import pytest
import torch

from tests.trainer.conftest import ROOT, tiny
from trainer.failures.memory import OutOfMemory, explained, figures, ways_out
from trainyard.config.training import TrainerConfig
from trainyard.config.training.parallel import Layout

CPU = torch.device("cpu")
ALONE = Layout(pipeline=1, replicate=1, shard=1, tensor=1, accumulation=2)


def keys(config: TrainerConfig, layout: Layout = ALONE, cached: int = 0) -> list[str]:
    return [way.split()[0] for way in ways_out(config, layout, 2**30, cached)]


def test_all_that_is_not_yet_done_is_advised() -> None:
    config = tiny(micro_batch_size=6, batch_size=48)
    layout = Layout(pipeline=1, replicate=4, shard=1, tensor=1, accumulation=2)
    found = list(ways_out(config, layout, 2**30))
    assert found[0] == ("micro_batch_size 6 -> 3: batch_size stays 48, in 4 micro-batches of a rank in place of 2")
    assert "memory.loss_chunk 1024 -> 256: the logits of so many of 192 tokens stand at once" in found
    assert any("16.00 GiB on each rank, and would take 4.00 on each of 4" in way for way in found)
    assert keys(config, layout) == [
        *("micro_batch_size", "precision", "memory.loss_chunk", "memory.activation_checkpointing"),
        *("parallel.data", "more"),
    ]


def test_what_is_done_already_is_not_advised() -> None:
    config = tiny(
        micro_batch_size=1,
        precision="bf16",
        memory={"loss_chunk": 128, "activation_checkpointing": "full"},
        parallel={"data": "fsdp"},
    )
    assert keys(config) == ["more"]
    images = tiny(model={"kind": "images"}, micro_batch_size=1, precision="bf16")
    assert keys(images) == ["more"]


def test_every_micro_batch_advised_keeps_the_batch() -> None:
    for micro in range(2, 60):
        config = tiny(micro_batch_size=micro, batch_size=2 * micro)
        (first, *_) = ways_out(config, ALONE, 1)
        told = int(first.split(" -> ")[1].split(":")[0])
        assert micro % told == 0
        assert told < micro


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
def test_each_kind_of_it_is_known(error: BaseException) -> None:
    def fail() -> None:
        with explained(tiny(), ALONE, CPU, "rank 3 (host a, local rank 1, CPU)", 1000):
            raise error

    with pytest.raises(OutOfMemory, match=r"^out of memory on rank 3 \(host a, local rank 1, CPU\): ") as told:
        fail()
    assert "What needs less, the cheapest first:\n  - micro_batch_size 2 -> 1: batch_size stays 12" in str(told.value)
    assert "GiB resident in this process" in str(told.value)


@pytest.mark.parametrize(
    "words",
    ["shapes do not match", "CUDA error: an illegal memory access was encountered", "CUBLAS_STATUS_EXECUTION_FAILED"],
)
def test_other_errors_pass(words: str) -> None:
    def fail() -> None:
        with explained(tiny(), ALONE, CPU, "rank 0", 1000):
            raise RuntimeError(words)

    with pytest.raises(RuntimeError, match=words):
        fail()


def test_of_many_lines_the_one_about_memory_is_told() -> None:
    def fail() -> None:
        with explained(tiny(), ALONE, CPU, "rank 0", 1000):
            raise RuntimeError("NCCL error in: NCCLUtils.cpp:94\nLast error:\nCuda failure 'out of memory'")

    with pytest.raises(OutOfMemory, match=r"^out of memory on rank 0: Cuda failure 'out of memory'\n"):
        fail()


def test_a_gpus_figures_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    gib = 2**30
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 * gib, 80 * gib))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 60 * gib)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 75 * gib)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 70 * gib)
    assert figures(torch.device("cuda", 0)) == (
        "The GPU has 80.00 GiB: 60.00 in tensors (at most 70.00), 15.00 held for more, 4.00 used beside them (CUDA,"
        " NCCL, other processes), 1.00 free"
    )


def test_memory_in_pieces_is_told_first() -> None:
    assert keys(tiny(), cached=15 * 2**30)[0] == "the"
    assert "PYTORCH_ALLOC_CONF=expandable_segments:True: 15.0 GiB" in next(ways_out(tiny(), ALONE, 1, 15 * 2**30))


# A model and a limit that do not go together, in a process whose address space is that small.
PROGRAM = """
import resource, sys, torch
from tests.trainer.conftest import tiny
from tests.trainer.failures.test_memory import ALONE
from trainer import __main__ as program
from trainer.failures.memory import explained

def train(config, environment):
    with explained(config, ALONE, torch.device("cpu"), "rank 0 (here)", 1000):
        resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))
        torch.empty(2**36).fill_(1)

status, told = program._ended(train, tiny(), None)
print(told, file=sys.stderr)
sys.exit(status)
"""


def test_a_process_that_has_it_ends_with_status_1_and_one_message() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert ended.returncode == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stderr.startswith("out of memory on rank 0 (here): ")
