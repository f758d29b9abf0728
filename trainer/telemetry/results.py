"""Contents of `results.json`: the outcome, configuration and software versions of a finished run."""

import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import torch

from trainer.checkpoints import Progress
from trainer.settings import Environment
from trainyard.config.training import TrainerConfig
from trainyard.models.metrics import Export, Figures, Results

_LIBRARIES = (
    *("torch", "torchao", "torchvision", "transformers", "tokenizers", "safetensors", "numpy", "pydantic", "boto3"),
    *("s3torchconnector", "tensorboard"),
)


def build_results(
    config: TrainerConfig,
    environment: Environment,
    progress: Progress,
    *,
    validation_loss: float,
    seconds: float,
    figures: Figures | None,
    parameters: int,
    checkpoints: list[str],
    exports: Mapping[Literal["safetensors", "int8"], Export] = MappingProxyType({}),
) -> Results:
    """Return the results of a run. `seconds`: duration of this attempt; `parameters`: size of the model."""
    length = None if config.model.kind == "images" else config.model.sequence_length
    return Results(
        run=environment.run,
        steps=progress.step,
        world_size=environment.world_size,
        first_loss=progress.first_loss,
        last_loss=progress.last_loss,
        validation_loss=validation_loss,
        samples=progress.consumed,
        tokens=None if length is None else progress.consumed * length,
        seconds=seconds,
        figures=figures,
        parameters=parameters,
        checkpoints=tuple(checkpoints),
        exports=dict(exports),
        data=environment.data_uri,
        config=config,
        code_sha256=code_sha256(),
        versions={"python": platform.python_version()} | versions(),
    )


def code_sha256() -> str:
    """Return a SHA-256 over the names and contents of the trainer's modules."""
    digest = hashlib.sha256()
    folder = Path(__file__).parents[1]
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of the libraries that the trainer uses, and of CUDA."""
    libraries = {name: _version(name) for name in _LIBRARIES}
    return libraries | ({"cuda": torch.version.cuda} if torch.cuda.is_available() and torch.version.cuda else {})


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"
