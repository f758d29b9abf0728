"""Copies of a state's tensors in the host's memory, which is kept from save to save.

All are copied by one call that leaves Python's lock to training. torch's own `DefaultStager` copies storages, which on
a CPU holds that lock for as long as the copy takes, and walks the state beside training, in turns with it at the lock.
"""

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.cuda._pin_memory_utils import pin_memory, unpin_memory

from trainer.checkpoints.state import local, tensors_of

_PINNED_FROM = 64 * 2**10  # bytes; less is copied sooner than its pages are pinned


class Stager:
    """For one state after another, each staged when the last one's copies are no longer read."""

    def __init__(self) -> None:
        self._copies: dict[tuple[str, ...], Tensor] = {}
        accelerated = torch.accelerator.is_available()
        self._stream = torch.Stream() if accelerated else None  # of its own, beside training's
        self._pins = torch.cuda.is_available()  # a GPU's copies then take the bus's speed, and don't wait

    def stage(self, content: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        """What copies the tensors of nested dicts, and gives the same dicts with the copies in their place.

        To be called in any thread, once; until it returns, no tensor may change. What this thread has already told the
        accelerator to do comes before the copies. Memory that has two names is copied once.
        """
        kept, self._copies = self._copies, {}
        by_memory: dict[tuple[object, ...], Tensor] = {}
        by_names: dict[tuple[str, ...], Tensor] = {}
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        fresh: list[Tensor] = []
        for names, live in tensors_of(content):
            own = local(live)
            memory = (own.data_ptr(), own.dtype, own.stride(), live.size())
            copy = by_memory.get(memory)
            if copy is None:
                copy = kept.get(names)
                if copy is None or not _alike(copy, live):
                    copy = torch.empty_like(live, device="cpu")
                    fresh.append(local(copy))
                self._copies[names] = by_memory[memory] = copy
                sources.append(own)
                targets.append(local(copy))
            by_names[names] = copy
        staged = _with(by_names, content)
        if self._stream:
            self._stream.wait_stream(torch.accelerator.current_stream())

        def fill() -> dict[str, Any]:
            if self._pins:
                for each in fresh:
                    _pin(each)
            with torch.no_grad(), self._stream or nullcontext():
                torch._foreach_copy_(targets, sources, non_blocking=self._stream is not None)
            if self._stream:
                self._stream.synchronize()
            return staged

        return fill


def _with(tensors: dict[tuple[str, ...], Tensor], content: dict[str, Any], *place: str) -> dict[str, Any]:
    """The same nested dicts with these tensors in their places."""
    return {
        name: _with(tensors, value, *place, name) if isinstance(value, dict) else tensors.get((*place, name), value)
        for name, value in content.items()
    }


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether one's memory takes the other's values, part for part."""
    mine, theirs = local(one), local(other)
    return one.size() == other.size() and mine.size() == theirs.size() and mine.dtype == theirs.dtype


def _pin(tensor: Tensor) -> None:
    """In place: an allocator of pinned memory would round each size up to a power of two."""
    storage = tensor.untyped_storage()
    if storage.nbytes() >= _PINNED_FROM:
        pin_memory(storage.data_ptr(), storage.nbytes())
        weakref.finalize(storage, unpin_memory, storage.data_ptr()).atexit = False  # CUDA may be gone by then
