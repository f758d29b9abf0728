"""The metadata of a checkpoint is read without executing code from it."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_saver import save

from trainer.checkpoints.failures import DamagedCheckpointError
from trainer.checkpoints.files import read_metadata
from trainer.checkpoints.metadata_pickle import load_metadata


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def test_metadata_that_torch_writes_is_read(tmp_path: Path) -> None:
    tensors = {str(dtype): torch.zeros(2, 3, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.uint8)}
    save({"model": tensors, "step": 3, "nested": [1, {"x": torch.ones(1)}]}, checkpoint_id=tmp_path)
    metadata = read_metadata(str(tmp_path))
    with (tmp_path / ".metadata").open("rb") as file:
        assert metadata == pickle.load(file)


@pytest.mark.parametrize("nested", [False, True])
def test_checkpoint_cannot_execute_code(tmp_path: Path, nested: bool) -> None:
    call = Call(Path.touch, tmp_path / "executed")
    content: Any = Metadata(state_dict_metadata={}, planner_data=call) if nested else call
    (tmp_path / ".metadata").write_bytes(pickle.dumps(content))
    with pytest.raises(DamagedCheckpointError, match="is not part of checkpoint metadata"):
        read_metadata(str(tmp_path))
    assert not (tmp_path / "executed").exists()


def test_attributes_of_other_objects_are_refused() -> None:
    with pytest.raises(pickle.UnpicklingError, match="no member of an enumeration"):
        load_metadata(pickle.dumps(Call(getattr, torch.Size, "__subclasses__")))
