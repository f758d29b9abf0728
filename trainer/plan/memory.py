"""Records the memory of all tensors of a program, by category, from its first operation to its last."""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, get_args
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

# gathered: parameters that FSDP has gathered from other ranks, or autocast has converted
Category = Literal["parameters", "gathered", "gradients", "optimizer", "activations", "logits", "buffers"]
CATEGORIES: tuple[Category, ...] = get_args(Category)
Observer = Callable[[Any, Any], None]


class MemoryRecorder(TorchDispatchMode):
    """Records when the storage of each tensor is allocated, resized and freed, while the mode is active.

    A storage has the category of `category` when it was allocated, unless `label` assigns another category, which also
    applies to the time before. `observe` is called with each operation, and with a list of its arguments and its
    result. Fragmentation of an allocator and workspaces of libraries are not recorded.
    """

    def __init__(self, observe: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.category: Category = "activations"
        self._observe = observe
        self._patches = ExitStack()
        self._storages = WeakIdKeyDictionary()  # storage -> its number
        self._categories: list[Category] = []  # by number
        self._sizes: list[int] = []  # bytes at present, by number
        self._is_paused = False
        self._changes: list[tuple[int, int]] = []  # number and change of the size, bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and record its results."""
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented  # it calls operations on local tensors, which are recorded
        result = func(*args, **(kwargs or {}))
        if self._is_paused:
            return result
        for tensor in tensors_of(result):
            self._record(tensor.untyped_storage())
        self._observe(func, [*args, *(kwargs or {}).values(), result])
        return result

    def __enter__(self) -> "MemoryRecorder":
        """Start to record, also changes of sizes without an operation; not the shapes that DTensor infers."""
        resize = torch.UntypedStorage.resize_

        def recorded_resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if storage in self._storages:
                self._record(storage)
            return result

        infer = ShardingPropagator._propagate_tensor_meta_non_cached

        def unrecorded_inference(*arguments: Any) -> Any:
            self._is_paused = True
            try:
                return infer(*arguments)
            finally:
                self._is_paused = False

        self._patches.enter_context(patch.object(torch.UntypedStorage, "resize_", recorded_resize))
        self._patches.enter_context(
            patch.object(ShardingPropagator, "_propagate_tensor_meta_non_cached", unrecorded_inference)
        )
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *details: object) -> None:
        """Stop to record."""
        super().__exit__(*details)  # type: ignore[no-untyped-call]
        self._patches.close()

    @contextmanager
    def allocating(self, category: Category) -> Iterator[None]:
        """Assign a category to the storages that are allocated in this context."""
        before, self.category = self.category, category
        yield
        self.category = before

    def label(self, tensors: Iterable[Any], category: Category) -> None:
        """Assign a category to the storages of these tensors."""
        for tensor in tensors_of(list(tensors)):
            self._categories[self._record(tensor.untyped_storage())] = category

    def category_of(self, tensor: Tensor) -> Category:
        """Return the category of a tensor's storage."""
        return self._categories[self._record(tensor.untyped_storage())]

    def peak(self) -> Mapping[Category, int]:
        """Return the bytes of each category at the time of the largest sum."""
        current: Counter[Category] = Counter()
        total = largest = 0
        result: Mapping[Category, int] = {}
        for number, change in self._changes:
            current[self._categories[number]] += change
            total += change
            if total > largest:
                largest, result = total, dict(current)
        return {category: result.get(category, 0) for category in CATEGORIES}

    def _record(self, storage: torch.UntypedStorage) -> int:
        number: int = self._storages.get(storage, -1)  # type: ignore[no-untyped-call]
        if number < 0:
            number = len(self._sizes)
            self._storages[storage] = number
            self._categories.append(self.category)
            self._sizes.append(0)
            weakref.finalize(storage, self._resize, number, 0).atexit = False
        self._resize(number, storage.nbytes())
        return number

    def _resize(self, number: int, size: int) -> None:
        if change := size - self._sizes[number]:
            self._changes.append((number, change))
            self._sizes[number] = size


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested lists and dictionaries; of a DTensor its local part."""
    for leaf in tree_leaves(value):
        if isinstance(leaf, DTensor):
            yield leaf._local_tensor
        elif isinstance(leaf, Tensor):
            yield leaf
