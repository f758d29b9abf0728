"""Copies of a state's tensors in the host's memory."""

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


def test_copies_keep_their_places_and_other_values_stay(stager: Stager) -> None:
    found = staged(stager, model={"a": torch.ones(2), "b": torch.zeros(3, dtype=torch.int8)}, step=3)
    assert torch.equal(found["model"]["a"], torch.ones(2))
    assert torch.equal(found["model"]["b"], torch.zeros(3, dtype=torch.int8))
    assert found["step"] == 3


def test_a_copy_is_of_the_values_at_the_copying(stager: Stager) -> None:
    live = torch.zeros(4)
    copy = stager.stage({"a": live})
    live += 1
    found = copy()["a"]
    live += 1
    assert torch.equal(found, torch.ones(4))


def test_memory_is_kept_from_save_to_save(stager: Stager) -> None:
    first, second = (staged(stager, a=torch.full((4,), value))["a"] for value in (1.0, 2.0))
    assert first.data_ptr() == second.data_ptr()
    assert torch.equal(second, torch.full((4,), 2.0))


@pytest.mark.parametrize(
    "other", [torch.ones(5), torch.ones(4, dtype=torch.float64), torch.ones(2, 2)], ids=["5", "float64", "2x2"]
)
def test_another_size_or_type_gets_memory_of_its_own(stager: Stager, other: Tensor) -> None:
    staged(stager, a=torch.zeros(4))
    found = staged(stager, a=other)["a"]
    assert found.dtype == other.dtype
    assert torch.equal(found, other)


def test_nothing_of_the_state_is_held_after_the_copy(stager: Stager) -> None:
    """Not until a collection: optimizer states and copies of buffers are large, and on a GPU."""
    live = torch.zeros(4)
    ended = weakref.finalize(live, lambda: None)
    gc.disable()
    try:
        staged(stager, model={"a": live})
        del live
        assert not ended.alive
    finally:
        gc.enable()


def test_memory_with_two_names_is_copied_once(stager: Stager) -> None:
    tied = torch.ones(4)
    found = staged(stager, embedding=tied, head=tied.view(4), part=tied[:2])
    assert found["embedding"] is found["head"]
    assert torch.equal(found["part"], torch.ones(2))


def test_names_that_parted_do_not_share_a_copy(stager: Stager) -> None:
    tied = torch.ones(4)
    staged(stager, embedding=tied, head=tied)
    found = staged(stager, embedding=tied, head=torch.zeros(4))
    assert torch.equal(found["embedding"], tied)
    assert torch.equal(found["head"], torch.zeros(4))


def test_empty_parts_keep_their_own_sizes(stager: Stager) -> None:
    found = staged(stager, a=torch.ones(0, 3), b=torch.ones(0, 3, dtype=torch.int8), c=torch.ones(0))
    assert [tuple(each.shape) for each in found.values()] == [(0, 3), (0, 3), (0,)]
    assert found["b"].dtype == torch.int8


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("placement", [Shard(0), Replicate()], ids=str)
def test_what_is_spread_over_ranks_stays_so(stager: Stager, placement: Shard | Replicate) -> None:
    live = DTensor.from_local(torch.ones(4, 2), DeviceMesh("cpu", [0]), [placement])
    found = staged(stager, a=live)["a"]
    live.add_(1)
    assert isinstance(found, DTensor)
    assert (found.device_mesh, found.placements) == (live.device_mesh, live.placements)
    assert torch.equal(found.to_local(), torch.ones(4, 2))
