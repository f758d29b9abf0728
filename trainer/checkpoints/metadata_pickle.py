"""Unpickles the `.metadata` of a checkpoint without executing code from it.

torch.distributed.checkpoint reads the file with `pickle`, which calls any function that the file names (Python library
reference, pickle, "Restricting Globals"). This module accepts the globals that torch 2.15 writes, and no others.
"""

import io
import pickle
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as checkpoint_metadata

_NAMES = {
    "collections": {"OrderedDict"},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    filesystem.__name__: {"_StorageInfo"},
    checkpoint_metadata.__name__: {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}


def load_metadata(content: bytes) -> Any:
    """Return the object in a `.metadata` file. Raises UnpicklingError for a global that torch does not write."""
    return _Unpickler(io.BytesIO(content)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a global by its name, if it is in the list."""
        if (module, name) == ("builtins", "getattr"):  # how pickle refers to a member of an enumeration
            return _enum_member
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if is_dtype or name in _NAMES.get(module, ()):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of checkpoint metadata")


def _enum_member(owner: Callable[..., Any], name: str) -> Enum:
    if isinstance(owner, type) and issubclass(owner, Enum) and name in owner.__members__:
        return owner[name]
    raise pickle.UnpicklingError(f"{name} is no member of an enumeration")
