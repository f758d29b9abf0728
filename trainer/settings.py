"""What the job was given: the configuration file, and the environment that node and torchrun set."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from contract.base import InputError, Problem, problems_of
from contract.training import TrainerConfig

_URIS = {
    "DATA_URI": "the dataset, the folder of its dataset.json",
    "CHECKPOINT_URI": "the folder of this run's checkpoints",
    "RESULTS_URI": "the folder of this run's results",
}


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The process's place in the job, and where its data come from and go to. URIs are `s3://...` or folders."""

    data_uri: str
    checkpoint_uri: str
    results_uri: str
    resume_uri: str | None  # another run's checkpoints, used while this run has none
    run: str
    attempt: int
    metrics_dir: Path
    checkpoint_request: Path  # while this file is there, its node asks for a checkpoint at the next step
    cache_dir: Path  # token shards, shared by all processes of a node
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Self:
        """Raises InputError that names every variable missing or unreadable."""
        problems = [
            Problem(key=name, value=None, why="is not in the environment", fix=f"Set it to {what}")
            for name, what in _URIS.items()
            if not variables.get(name)
        ]

        def number(name: str, otherwise: int) -> int:
            text = variables.get(name, str(otherwise))
            if not text.isdecimal():
                problems.append(Problem(key=name, value=text, why="is not a number", fix="Give a number of 0 or more"))
                return otherwise
            return int(text)

        metrics = Path(variables.get("METRICS_DIR", "metrics"))
        cache = Path(tempfile.gettempdir()) / f"trainyard-cache-{os.getuid()}"
        found = cls(
            data_uri=variables.get("DATA_URI", ""),
            checkpoint_uri=variables.get("CHECKPOINT_URI", ""),
            results_uri=variables.get("RESULTS_URI", ""),
            resume_uri=variables.get("RESUME_URI") or None,
            run=variables.get("TRAINYARD_RUN", "alone"),
            attempt=number("TRAINYARD_ATTEMPT", 1),
            metrics_dir=metrics,
            checkpoint_request=Path(variables.get("CHECKPOINT_REQUEST") or metrics / "checkpoint-request"),
            cache_dir=Path(variables.get("TRAINYARD_CACHE") or cache),
            rank=number("RANK", 0),
            local_rank=number("LOCAL_RANK", 0),
            world_size=number("WORLD_SIZE", 1),
            local_world_size=number("LOCAL_WORLD_SIZE", 1),
        )
        if problems:
            raise InputError(problems)
        return found


def read_config(path: Path, world_size: int) -> TrainerConfig:
    """Raises InputError for an unreadable file, a wrong key or value, or a batch that `world_size` can't share."""
    key = str(path)
    try:
        config = TrainerConfig.model_validate_json(path.read_bytes())
        config.accumulation(world_size)
    except ValidationError as error:
        raise InputError(problems_of(error, "config", key)) from None
    except OSError as error:
        why = f"can't be read: {error.strerror}"
        raise InputError([Problem(key="--config", value=key, why=why, fix="Name a JSON file")]) from None
    except ValueError as error:
        fix = "Change batch_size, micro_batch_size or the number of processes"
        raise InputError([Problem(key="config.batch_size", value=config.batch_size, why=str(error), fix=fix)]) from None
    return config
