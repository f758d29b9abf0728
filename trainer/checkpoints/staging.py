"""Copies the tensors of a state into host memory, which is reused from save to save.

One call copies all tensors and releases Python's lock (GIL). torch's `DefaultStager` copies storages one by one, which
on a CPU holds that lock during the copy, and traverses the state during training, so that both compete for the lock.
"""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.cuda._pin_memory_utils import pin_memory, unpin_memory

from trainer.checkpoints.state import named_tensors
from trainer.local_tensor import local_tensor

_MIN_PINNED_BYTES = 64 * 2**10  # to pin less takes longer than to copy it


class Stager:
    """Copies one state after another. The copies of the previous state must be no longer in use."""

    def __init__(self, allocate: Callable[[Tensor], Tensor] | None = None) -> None:
        """`allocate`: returns the target of the copies of a tensor. By default the stager allocates it, and pins it."""
        self._allocate = allocate or (lambda live: torch.empty_like(live, device="cpu"))
        self._copies: dict[tuple[str, ...], Tensor] = {}
        has_accelerator = torch.accelerator.is_available()
        self._stream = torch.Stream() if has_accelerator else None  # a separate stream, parallel to training
        # Copies to pinned memory run at bus speed and asynchronously.
        self._pins_memory = torch.cuda.is_available() and allocate is None

    def stage(self, content: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        """Return a function that copies the tensors of nested dicts and returns the same dicts with the copies.

        Any thread may call that function, once; no tensor may change until it returns. The copies start after all work
        that this thread has queued on the accelerator. Memory with two names is copied once.
        """
        reusable, self._copies = self._copies, {}
        by_memory: dict[tuple[object, ...], Tensor] = {}
        by_path: dict[tuple[str, ...], Tensor] = {}
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        allocated: list[Tensor] = []
        for path, live in named_tensors(content):
            source = local_tensor(live)
            memory = (source.data_ptr(), source.dtype, source.stride(), live.size())
            copy = by_memory.get(memory)
            if copy is None:
                copy = reusable.get(path)
                if copy is None or not _same_layout(copy, live):
                    copy = self._allocate(live)
                    allocated.append(local_tensor(copy))
                self._copies[path] = by_memory[memory] = copy
                sources.append(source)
                targets.append(local_tensor(copy))
            by_path[path] = copy
        staged = _replace_tensors(by_path, content)
        if self._stream:
            self._stream.wait_stream(torch.accelerator.current_stream())

        def copy_all() -> dict[str, Any]:
            if self._pins_memory:
                for tensor in allocated:
                    pin(tensor)
            with torch.no_grad(), self._stream or nullcontext():
                torch._foreach_copy_(targets, sources, non_blocking=self._stream is not None)
            if self._stream:
                self._stream.synchronize()
            return staged

        return copy_all


def _replace_tensors(tensors: dict[tuple[str, ...], Tensor], content: dict[str, Any], *path: str) -> dict[str, Any]:
    """Return the same nested dicts with `tensors` at their paths."""
    return {
        name: _replace_tensors(tensors, value, *path, name)
        if isinstance(value, dict)
        else tensors.get((*path, name), value)
        for name, value in content.items()
    }


def _same_layout(copy: Tensor, live: Tensor) -> bool:
    """Return whether both have the same global size, local size and dtype."""
    local_copy, local_live = local_tensor(copy), local_tensor(live)
    return (
        copy.size() == live.size() and local_copy.size() == local_live.size() and local_copy.dtype == local_live.dtype
    )


def pin(tensor: Tensor) -> None:
    """Pin the existing memory: an allocator of pinned memory would round each size up to a power of two."""
    storage = tensor.untyped_storage()
    if storage.nbytes() >= _MIN_PINNED_BYTES:
        pin_memory(storage.data_ptr(), storage.nbytes())
        weakref.finalize(storage, unpin_memory, storage.data_ptr()).atexit = False  # CUDA may be shut down at exit
