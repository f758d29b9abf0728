"""The recorded memory of operations on tensors without data."""

from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.plan.memory import MemoryRecorder

KIB = 1024


@pytest.fixture
def recorder() -> Iterator[MemoryRecorder]:
    with FakeTensorMode(), MemoryRecorder(lambda function, values: None) as active:
        yield active


def new(kib: int) -> torch.Tensor:
    return torch.empty(kib * KIB // 4)


def test_peak_is_the_largest_sum(recorder: MemoryRecorder) -> None:
    first = new(3)
    second = new(5)
    del first
    third = new(2)
    assert recorder.peak()["activations"] == 8 * KIB
    del second, third


def test_views_and_operations_in_place_need_no_memory(recorder: MemoryRecorder) -> None:
    tensor = new(4)
    tensor.view(2, -1).add_(1)
    assert recorder.peak()["activations"] == 4 * KIB


def test_temporary_tensors_are_freed(recorder: MemoryRecorder) -> None:
    tensor = new(4)
    for _ in range(10):
        tensor = tensor + 1
    assert recorder.peak()["activations"] == 8 * KIB


def test_label_applies_to_the_time_before(recorder: MemoryRecorder) -> None:
    tensor = new(4)
    recorder.label([{"weight": tensor.view(2, -1)}], "parameters")
    assert {name: size for name, size in recorder.peak().items() if size} == {"parameters": 4 * KIB}


def test_allocations_have_the_category_of_their_context(recorder: MemoryRecorder) -> None:
    first = new(4)
    with recorder.allocating("optimizer"):
        second = new(2)
    third = new(1)
    peak = recorder.peak()
    assert (peak["activations"], peak["optimizer"]) == (5 * KIB, 2 * KIB)
    del first, second, third


def test_changed_size_of_a_storage_is_recorded(recorder: MemoryRecorder) -> None:
    """FSDP frees gathered parameters so."""
    gathered = new(8)
    gathered.untyped_storage().resize_(0)
    other = new(6)
    assert recorder.peak()["activations"] == 8 * KIB
    gathered.untyped_storage().resize_(8 * KIB)
    assert recorder.peak()["activations"] == 14 * KIB
    del other
