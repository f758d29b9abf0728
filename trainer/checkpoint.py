"""Checkpoints: `torch.distributed.checkpoint` into one prefix a step, straight to S3 or into a folder.

`.metadata` is written last and whole, so it is the commit mark: a prefix without it does not count.
"""

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from contract.base import InputError, Problem
from contract.layout import COMMIT_MARK
from contract.training import ModelConfig
from trainer.storage import open_storage, region

# Seconds between the tries of one save or load: an outage of two minutes is ridden out. The same on every rank, so that
# all ranks try again together.
PAUSES = (1, 2, 4, 8, 15, 30, 30, 30)

T = TypeVar("T")


@dataclass
class Progress:
    """How far the run is, over all its attempts."""

    step: int = 0
    consumed: int = 0  # sequences
    first_loss: float = float("nan")
    last_loss: float = float("nan")


@dataclass(frozen=True, kw_only=True)
class State:
    """All that makes step k+1 what it is. `model` is the bare one, not its parallel wrapper."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    progress: Progress
    shape: ModelConfig


class Checkpoints:
    """The checkpoints under one URI. Every method but `complete` is called by all ranks of the group together."""

    def __init__(self, uri: str, group: dist.ProcessGroup, name: str = "CHECKPOINT_URI") -> None:
        self._storage = open_storage(uri, name)
        self._group = group

    def complete(self) -> list[str]:
        """URIs of the complete ones, oldest first."""
        steps = [name for name in self._storage.folders() if name.startswith("step-")]
        return [f"{self._storage.uri}{name}/" for name in steps if self._storage.exists(f"{name}/{COMMIT_MARK}")]

    def newest(self) -> str | None:
        """URI of the newest complete one."""
        found: list[str | None] = [None, *self.complete()][-1:] if dist.get_rank() == 0 else [None]
        dist.broadcast_object_list(found, src=0, group=self._group)
        return found[0]

    def save(self, state: State) -> str:
        """Save and return the URI. Tries again as a whole while the storage is away, then raises OSError."""
        uri = f"{self._storage.uri}step-{state.progress.step:08d}/"
        content = _content(state) | {"generators": {str(dist.get_rank()): _generators()}}

        def attempt() -> None:
            with _quiet():
                save(content, storage_writer=_writer(uri), process_group=self._group)

        _insist(attempt, "saving", uri)
        return uri

    def load(self, uri: str, state: State) -> None:
        """Fill `state` in place from a complete checkpoint.

        Raises InputError where it was made with another model or has been archived, OSError where it can't be read.
        """
        rank = str(dist.get_rank())
        metadata = _insist(lambda: read_metadata(uri), "reading", uri)
        content = _content(state)
        _same_shapes(content["model"], metadata, uri)
        # With more ranks than the checkpoint had, the new ones keep the generators they were seeded with.
        saved = {key for key in _generators() if f"generators.{rank}.{key}" in metadata.state_dict_metadata}
        content["generators"] = {rank: {key: value for key, value in _generators().items() if key in saved}}

        def attempt() -> None:
            with _quiet():
                load(content, storage_reader=_reader(uri), process_group=self._group)

        _insist(attempt, "loading", uri)
        if content["shape"] != state.shape.model_dump():
            raise _other_model(uri, f"was made with the model {content['shape']}")
        for key, value in content["progress"].items():
            setattr(state.progress, key, value)
        restored = content["generators"][rank]
        if "cpu" in restored:
            torch.set_rng_state(restored["cpu"])
        if "cuda" in restored:
            torch.cuda.set_rng_state(restored["cuda"])


def read_metadata(uri: str) -> Metadata:
    """What a complete checkpoint holds. Raises OSError and kin where there is none."""
    with _quiet():
        metadata: Metadata = _reader(uri).read_metadata()
        return metadata


def load_whole(uri: str) -> dict[str, Any]:
    """Every entry of a checkpoint, by its full name, on the CPU of a process without a group. Raises OSError."""
    metadata = _insist(lambda: read_metadata(uri), "reading", uri, pauses=())
    content: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        if isinstance(entry, TensorStorageMetadata)
        else None
        for name, entry in metadata.state_dict_metadata.items()
    }

    def attempt() -> None:
        with _quiet():
            load(content, storage_reader=_reader(uri), no_dist=True)

    _insist(attempt, "loading", uri, pauses=())
    return content


def _content(state: State) -> dict[str, Any]:
    """Model and optimizer tensors are the live ones: a load fills them in place.

    Of the optimizer only its tensors: rates, decay and betas are the configuration's, also after a resume.
    """
    with _quiet():
        return {
            "model": get_model_state_dict(state.model),
            "optimizer": get_optimizer_state_dict(state.model, state.optimizer)["state"],
            "progress": asdict(state.progress),
            "shape": state.shape.model_dump(),
        }


def _generators() -> dict[str, Tensor]:
    found = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def _same_shapes(tensors: dict[str, Tensor], metadata: Metadata, uri: str) -> None:
    for name, tensor in tensors.items():
        entry = metadata.state_dict_metadata.get(f"model.{name}")
        size = entry.size if isinstance(entry, TensorStorageMetadata) else None
        if size != tensor.size():
            raise _other_model(uri, f"holds {name} as {size and tuple(size)}, the model has {tuple(tensor.size())}")


def _other_model(uri: str, why: str) -> InputError:
    fix = "Give the model of that checkpoint, or begin anew under another CHECKPOINT_URI"
    return InputError([Problem(key="checkpoint", value=uri, why=why, fix=fix)])


def _writer(uri: str) -> FileSystemWriter:
    if "://" not in uri:
        return FileSystemWriter(uri, overwrite=True)
    from s3torchconnector.dcp import S3StorageWriter

    writer: FileSystemWriter = S3StorageWriter(**_s3(uri), overwrite=True)
    return writer


def _reader(uri: str) -> FileSystemReader:
    if "://" not in uri:
        return FileSystemReader(uri)
    from s3torchconnector.dcp import S3StorageReader

    reader: FileSystemReader = S3StorageReader(**_s3(uri))
    return reader


def _s3(uri: str) -> dict[str, Any]:
    """The connector finds the endpoint in AWS_ENDPOINT_URL by itself, but not how its buckets are addressed."""
    from s3torchconnector import S3ClientConfig

    own_endpoint = bool(os.environ.get("AWS_ENDPOINT_URL"))
    # Few tries of its own, whose pauses grow to a minute: the whole is tried again here.
    settings = S3ClientConfig(force_path_style=own_endpoint, max_attempts=4)
    return {"region": region(), "path": uri, "s3client_config": settings}


def _insist(attempt: Callable[[], T], doing: str, uri: str, pauses: tuple[int, ...] = PAUSES) -> T:
    """Do it, and again after each pause while the storage is what fails.

    Raises OSError in the last failure's words, InputError for what S3 holds and can't be read.
    """
    for pause in (*pauses, None):
        try:
            return attempt()
        except CheckpointException as failure:
            # Raised on all ranks alike: each rank knows of every rank's failure, and all decide the same.
            causes = [cause for cause, _ in failure.failures.values()]
        except Exception as error:
            causes = [error]
        if any(_is_archived(cause) for cause in causes):
            raise _archived(uri) from causes[0]
        words = f"{doing} {uri}: {type(causes[0]).__name__}: {causes[0]}"
        if pause is None or not all(_passing(cause) for cause in causes):
            raise OSError(words) from causes[0]
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(f"{words}; again in {pause} s", flush=True)
        time.sleep(pause)
    raise AssertionError("unreachable")


def _is_archived(cause: BaseException) -> bool:
    """Whether S3 refused to read an object of an archive class: InvalidObjectState, which the connector tells by S3's
    own words only."""
    return type(cause).__name__ == "S3Exception" and "not valid for the object's storage class" in str(cause)


def _archived(uri: str) -> InputError:
    why = "S3 has moved it to an archive class such as Deep Archive, from where nothing is read"
    fix = "Ask for it back (aws s3api restore-object; 12 to 48 hours) and start again, or resume from another run"
    return InputError([Problem(key="checkpoint", value=uri, why=why, fix=fix)])


def _passing(cause: BaseException) -> bool:
    """Whether it may be over soon: the storage was not reached, and not that it said no."""
    if type(cause).__name__ == "S3Exception":  # the connector's only class; importing it costs those who use a folder
        return not any(word in str(cause).lower() for word in ("not found", "denied", "forbidden", "does not exist"))
    return isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError | PermissionError)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's warnings about what is meant: no process group in a check, a deprecation of its own."""
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
