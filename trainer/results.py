"""`results.json`: what a finished run was."""

import hashlib
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from contract.metrics import Results
from contract.training import TrainerConfig
from trainer.checkpoint import Progress
from trainer.settings import Environment

_LIBRARIES = ("torch", "numpy", "pydantic", "boto3", "s3torchconnector", "tensorboard")


def results_of(
    config: TrainerConfig,
    environment: Environment,
    progress: Progress,
    *,
    validation_loss: float,
    seconds: float,
    parameters: int,
    checkpoints: list[str],
) -> Results:
    return Results(
        run=environment.run,
        steps=progress.step,
        world_size=environment.world_size,
        first_loss=progress.first_loss,
        last_loss=progress.last_loss,
        validation_loss=validation_loss,
        tokens=progress.consumed * config.model.sequence_length,
        seconds=seconds,
        parameters=parameters,
        checkpoints=tuple(checkpoints),
        data=environment.data_uri,
        config=config,
        code_sha256=code_sha256(),
        versions={"python": platform.python_version()} | {name: _version(name) for name in _LIBRARIES},
    )


def code_sha256() -> str:
    """Over names and contents of the trainer's own modules."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "none"
