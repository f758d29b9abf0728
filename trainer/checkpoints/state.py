"""Content of a checkpoint: model, optimizer state, progress, and random generator states."""

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)

from trainer.local_tensor import local_tensor
from trainyard.errors import InputError, Problem

_NEW_RUN = "start a new run: another CHECKPOINT_URI, and no RESUME_URI with this checkpoint"


@dataclass
class Progress:
    """Progress of the run over all its attempts."""

    step: int = 0
    consumed: int = 0  # samples
    first_loss: float = float("nan")
    last_loss: float = float("nan")

    def advance(self, samples: int) -> None:
        """Count one more step, with this number of samples."""
        self.step += 1
        self.consumed += samples

    def record_loss(self, step: int, loss: float) -> None:
        """Record the loss of the newest step whose loss is known."""
        self.last_loss = loss
        if step == 1:
            self.first_loss = loss


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that determines the next step. A load fills it in place, `scaler` included.

    `model` is the plain module without its parallel wrapper. With pipeline parallelism it is this rank's stage, and
    parameter names differ between stages. `replicas` is the group of ranks that hold the same tensors as this rank: all
    ranks in DDP, one rank of each shard group in HSDP, None if no other rank holds them. Its backend must support every
    device that holds the tensors.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    progress: Progress
    shape: Mapping[str, Any]  # the model's configuration, as JSON values
    order: Mapping[str, Any] = field(default_factory=dict)  # the settings that determine the order of samples, by key
    batch_size: int = 1
    scaler: dict[str, Any] = field(default_factory=dict)
    replicas: dist.ProcessGroup | None = None

    def tensors(self) -> dict[str, Any]:
        """Return the live tensors by name, without frozen parameters.

        Of the optimizer it returns only the tensors: learning rate, weight decay and betas are those of the
        configuration, also after a resume.
        """
        with warnings.catch_warnings(action="ignore"):  # of torch, about its own deprecated functions
            return {
                "model": get_model_state_dict(self.model, options=StateDictOptions(ignore_frozen_params=True)),
                "optimizer": get_optimizer_state_dict(self.model, self.optimizer)["state"],
            }

    def snapshot(self) -> dict[str, Any]:
        """Return the tensors for an asynchronous save, with copies of the buffers.

        A forward pass changes buffers, such as the statistics of batch normalization, and may run before the save has
        copied the rest. Only an optimizer step changes the other tensors.
        """
        tensors = self.tensors()
        buffers = {local_tensor(buffer).untyped_storage().data_ptr() for buffer in self.model.buffers()}
        for name, tensor in tensors["model"].items():
            if local_tensor(tensor).untyped_storage().data_ptr() in buffers:
                tensors["model"][name] = tensor.clone()
        return tensors

    def values(self) -> dict[str, Any]:
        """Return the values that are no tensors. They are the same on every rank.

        Nested dicts are JSON text, so that their keys may differ between checkpoints.
        """
        return {
            "progress": asdict(self.progress),
            "shape": json.dumps(dict(self.shape), sort_keys=True),
            "order": json.dumps(dict(self.order), sort_keys=True),
            "scaler": json.dumps(self.scaler, sort_keys=True),
        }

    def restore_values(self, values: Mapping[str, Any]) -> None:
        """Set progress and gradient scaler to the `values` of a checkpoint."""
        for key, value in values["progress"].items():
            setattr(self.progress, key, value)
        self.scaler.clear()
        self.scaler.update(json.loads(values["scaler"]))

    def require_same_model(self, values: Mapping[str, Any], uri: str) -> None:
        """Raise InputError if the checkpoint has another model configuration."""
        saved, current = json.loads(values["shape"]), json.loads(self.values()["shape"])
        if keys := sorted(key for key in saved.keys() | current.keys() if saved.get(key) != current.get(key)):
            changes = ", ".join(f"{key} is {saved.get(key)!r}, in this job {current.get(key)!r}" for key in keys)
            raise model_mismatch(uri, f"was made with another model: {changes}")

    def order_problems(self, values: Mapping[str, Any], uri: str) -> list[Problem]:
        """Return why the order of samples can't continue from the checkpoint; empty if it can.

        In another order some samples would repeat and others would never be used.
        """
        fix = f"Restore the value of that checkpoint, or {_NEW_RUN}"
        saved = json.loads(values.get("order", "{}"))
        problems = [
            Problem(key, value, f"changes the order of samples: {uri} has {before!r}", fix, "sample_order_changed")
            for key, value in self.order.items()
            if (before := saved.get(key, value)) != value
        ]
        if (consumed := values["progress"]["consumed"]) % self.batch_size:
            reason = f"does not divide the {consumed} samples after which {uri} was saved"
            problems.append(Problem("config.batch_size", self.batch_size, reason, fix, "batch_size_not_a_divisor"))
        return problems


def require_same_sizes(tensors: Mapping[str, Tensor], metadata: Metadata, uri: str) -> None:
    """Raise InputError if a tensor of the model has another size in the checkpoint or is missing there."""
    for name, tensor in tensors.items():
        entry = metadata.state_dict_metadata.get(f"model.{name}")
        size = entry.size if isinstance(entry, TensorStorageMetadata) else None
        if size != tensor.size():
            raise model_mismatch(uri, f"holds {name} as {size and tuple(size)}, the model has {tuple(tensor.size())}")


def require_same_optimizer(states: Mapping[str, Mapping[str, Tensor]], metadata: Metadata, uri: str) -> None:
    """Raise InputError if the checkpoint does not have the optimizer's state. states: parameter -> key -> tensor."""
    for name, state in states.items():
        for key in state:
            if f"optimizer.{name}.{key}" not in metadata.state_dict_metadata:
                reason = f"was saved with another optimizer.kind: it holds no {key} of {name}"
                fix = f"Restore the optimizer.kind of that run, or {_NEW_RUN}"
                raise InputError([Problem("checkpoint", uri, reason, fix, "checkpoint_of_another_optimizer")])


def model_mismatch(uri: str, reason: str) -> InputError:
    """Create the error for a checkpoint of another model."""
    fix = f"Use the model of that checkpoint, or {_NEW_RUN}"
    return InputError([Problem("checkpoint", uri, reason, fix, "checkpoint_of_another_model")])


def rng_state() -> dict[str, Tensor]:
    """Return the states of this rank's random generators, as bytes, by device type."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_rng_state(states: Mapping[str, Tensor]) -> None:
    """Set this rank's random generators to the result of `rng_state`."""
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def named_tensors(content: Mapping[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield each tensor of nested dicts, with its path of keys."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from named_tensors(value, *path, name)
        elif isinstance(value, Tensor):
            yield (*path, name), value
