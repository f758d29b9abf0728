"""What a checkpoint holds."""

import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.tensor import DTensor

from trainyard.base import InputError, Problem


@dataclass
class Progress:
    """How far the run is, over all its attempts."""

    step: int = 0
    consumed: int = 0  # samples
    first_loss: float = float("nan")
    last_loss: float = float("nan")

    def advance(self, samples: int, loss: float) -> None:
        """One step more."""
        self.step += 1
        self.consumed += samples
        self.last_loss = loss
        if self.step == 1:
            self.first_loss = loss


@dataclass(frozen=True, kw_only=True)
class State:
    """All that makes step k+1 what it is. A load fills it in place; `scaler` is a dict that a load fills.

    `model` is the bare one, not its parallel wrapper; in a pipeline it is this rank's stage, and no two stages share a
    name. `replicas` is the group of ranks that hold the same tensors as this one: all of them in DDP, one of each
    shard group in HSDP, None where no other rank does. Its backend must carry every device that the tensors are on.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    progress: Progress
    shape: Mapping[str, Any]  # the model's configuration, as JSON has it
    order: Mapping[str, Any] = field(default_factory=dict)  # by key, what the order of samples depends on, likewise
    batch_size: int = 1
    scaler: dict[str, Any] = field(default_factory=dict)
    replicas: dist.ProcessGroup | None = None

    def tensors(self) -> dict[str, Any]:
        """The live tensors by name. Of the optimizer only its tensors: rates, decay and betas are the configuration's,
        also after a resume."""
        with warnings.catch_warnings(action="ignore"):  # the library's, of its own deprecations
            return {
                "model": get_model_state_dict(self.model),
                "optimizer": get_optimizer_state_dict(self.model, self.optimizer)["state"],
            }

    def snapshot(self) -> dict[str, Any]:
        """The same for a save beside training. Buffers are copies: a forward pass changes them, such as batch
        normalisation's statistics, and it may come before the save has copied the rest. All else an update changes."""
        found = self.tensors()
        buffers = {local(each).untyped_storage().data_ptr() for each in self.model.buffers()}
        for name, each in found["model"].items():
            if local(each).untyped_storage().data_ptr() in buffers:
                found["model"][name] = each.clone()
        return found

    def words(self) -> dict[str, Any]:
        """What is no tensor, the same on every rank: small values, nested dicts as JSON, so that their keys may differ
        from one checkpoint to the next."""
        return {
            "progress": asdict(self.progress),
            "shape": json.dumps(dict(self.shape), sort_keys=True),
            "order": json.dumps(dict(self.order), sort_keys=True),
            "scaler": json.dumps(self.scaler, sort_keys=True),
        }

    def restore(self, words: Mapping[str, Any]) -> None:
        """Take over what `words` of another process gave."""
        for key, value in words["progress"].items():
            setattr(self.progress, key, value)
        self.scaler.clear()
        self.scaler.update(json.loads(words["scaler"]))

    def require_same(self, words: Mapping[str, Any], uri: str) -> None:
        """Raises InputError where the checkpoint was made with another model."""
        made_with, own = json.loads(words["shape"]), json.loads(self.words()["shape"])
        if made_with != own:
            keys = sorted(key for key in made_with.keys() | own.keys() if made_with.get(key) != own.get(key))
            told = ", ".join(f"{key} {made_with.get(key)!r} where this one has {own.get(key)!r}" for key in keys)
            raise other_model(uri, f"was made with another model: {told}")

    def disorder(self, words: Mapping[str, Any], uri: str) -> list[Problem]:
        """Why the samples that the checkpoint has left can't follow here: some would come twice, others never."""
        fix = "Give what it was made with, or begin anew under another CHECKPOINT_URI"
        made_with = json.loads(words.get("order", "{}"))
        found = [
            Problem(key=key, value=value, why=f"orders the samples anew: {uri} was made with {before!r}", fix=fix)
            for key, value in self.order.items()
            if (before := made_with.get(key, value)) != value
        ]
        if (consumed := words["progress"]["consumed"]) % self.batch_size:
            why = f"no batch of so many begins where {uri} ended: after {consumed} samples"
            found.append(Problem(key="config.batch_size", value=self.batch_size, why=why, fix=fix))
        return found


def require_same_sizes(tensors: Mapping[str, Tensor], metadata: Metadata, uri: str) -> None:
    """Raises InputError where a tensor of the model has another size in the checkpoint, or none."""
    for name, tensor in tensors.items():
        entry = metadata.state_dict_metadata.get(f"model.{name}")
        size = entry.size if isinstance(entry, TensorStorageMetadata) else None
        if size != tensor.size():
            raise other_model(uri, f"holds {name} as {size and tuple(size)}, the model has {tuple(tensor.size())}")


def other_model(uri: str, why: str) -> InputError:
    fix = "Give the model of that checkpoint, or begin anew under another CHECKPOINT_URI"
    return InputError([Problem(key="checkpoint", value=uri, why=why, fix=fix)])


def generators() -> dict[str, Tensor]:
    """States of this rank's random generators, as bytes."""
    found = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def restore_generators(found: Mapping[str, Tensor]) -> None:
    if "cpu" in found:
        torch.set_rng_state(found["cpu"])
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["cuda"])


def local(tensor: Tensor) -> Tensor:
    """This rank's own part of a tensor, or all of it where it is not spread."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def tensors_of(content: Mapping[str, Any], *place: str) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Each tensor of nested dicts, with the names that lead to it."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from tensors_of(value, *place, name)
        elif isinstance(value, Tensor):
            yield (*place, name), value
