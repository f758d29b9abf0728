"""Copies of a state's tensors in host memory."""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from trainer.checkpoints.staging import Stager


@pytest.fixture
def stager() -> Stager:
    return Stager()


def staged(stager: Stager, **content: Any) -> dict[str, Any]:
    return stager.stage(content)()


def test_copies_have_the_same_keys_and_other_values_are_unchanged(stager: Stager) -> None:
    result = staged(stager, model={"a": torch.ones(2), "b": torch.zeros(3, dtype=torch.int8)}, step=3)
    assert torch.equal(result["model"]["a"], torch.ones(2))
    assert torch.equal(result["model"]["b"], torch.zeros(3, dtype=torch.int8))
    assert result["step"] == 3


def test_copy_has_the_values_at_the_time_of_the_copy(stager: Stager) -> None:
    live = torch.zeros(4)
    copy = stager.stage({"a": live})
    live += 1
    result = copy()["a"]
    live += 1
    assert torch.equal(result, torch.ones(4))


def test_host_memory_is_reused_by_the_next_save(stager: Stager) -> None:
    first, second = (staged(stager, a=torch.full((4,), value))["a"] for value in (1.0, 2.0))
    assert first.data_ptr() == second.data_ptr()
    assert torch.equal(second, torch.full((4,), 2.0))


@pytest.mark.parametrize(
    "other", [torch.ones(5), torch.ones(4, dtype=torch.float64), torch.ones(2, 2)], ids=["5", "float64", "2x2"]
)
def test_tensor_of_another_size_or_dtype_gets_new_memory(stager: Stager, other: Tensor) -> None:
    staged(stager, a=torch.zeros(4))
    result = staged(stager, a=other)["a"]
    assert result.dtype == other.dtype
    assert torch.equal(result, other)


def test_stager_holds_no_reference_to_the_state_after_the_copy(stager: Stager) -> None:
    """Without garbage collection: optimizer states and copies of buffers are large, and in GPU memory."""
    live = torch.zeros(4)
    finalizer = weakref.finalize(live, lambda: None)
    gc.disable()
    try:
        staged(stager, model={"a": live})
        del live
        assert not finalizer.alive
    finally:
        gc.enable()


def test_memory_with_two_names_is_copied_once(stager: Stager) -> None:
    tied = torch.ones(4)
    result = staged(stager, embedding=tied, head=tied.view(4), part=tied[:2])
    assert result["embedding"] is result["head"]
    assert torch.equal(result["part"], torch.ones(2))


def test_names_that_are_no_longer_tied_get_separate_copies(stager: Stager) -> None:
    tied = torch.ones(4)
    staged(stager, embedding=tied, head=tied)
    result = staged(stager, embedding=tied, head=torch.zeros(4))
    assert torch.equal(result["embedding"], tied)
    assert torch.equal(result["head"], torch.zeros(4))


def test_empty_tensors_keep_their_shapes(stager: Stager) -> None:
    result = staged(stager, a=torch.ones(0, 3), b=torch.ones(0, 3, dtype=torch.int8), c=torch.ones(0))
    assert [tuple(tensor.shape) for tensor in result.values()] == [(0, 3), (0, 3), (0,)]
    assert result["b"].dtype == torch.int8


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("placement", [Shard(0), Replicate()], ids=str)
def test_dtensors_keep_mesh_and_placements(stager: Stager, placement: Shard | Replicate) -> None:
    live = DTensor.from_local(torch.ones(4, 2), DeviceMesh("cpu", [0]), [placement])
    result = staged(stager, a=live)["a"]
    live.add_(1)
    assert isinstance(result, DTensor)
    assert (result.device_mesh, result.placements) == (live.device_mesh, live.placements)
    assert torch.equal(result.to_local(), torch.ones(4, 2))
