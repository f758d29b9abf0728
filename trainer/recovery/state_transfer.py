"""Transfer of the training state from one replica to all others."""

from typing import Any, TypeVar

import torch.distributed as dist

from trainer.checkpoints.reader import broadcast_tensors
from trainer.checkpoints.state import State, named_tensors
from trainer.local_tensor import local_tensor

T = TypeVar("T")


def transfer_state(state: State, source: int, group: dist.ProcessGroup, values: T) -> T:
    """Set `state` on all ranks to that of the rank `source`. Returns the `values` of that rank.

    `group`: a gloo group of all ranks.
    """
    assert state.replicas is not None, "only replicated state can be transferred"
    content: list[Any] = [(state.values(), values)]
    dist.broadcast_object_list(content, source, group=group)
    ordered = sorted(named_tensors(state.tensors()), key=lambda item: item[0])  # the same order on all ranks
    broadcast_tensors([local_tensor(tensor) for _, tensor in ordered], source, state.replicas)
    received, others = content[0]
    state.restore_values(received)
    result: T = others
    return result
