"""What the job was given: the configuration file, and the environment that node and torchrun set."""

import os
import tempfile
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from trainyard.base import InputError, Problem, problems_of
from trainyard.config.training import TrainerConfig

_URIS = {
    "DATA_URI": "the dataset, the folder of its dataset.json",
    "CHECKPOINT_URI": "the folder of this run's checkpoints",
    "RESULTS_URI": "the folder of this run's results",
}
ALONE = "alone"  # run id of a job that no cluster has started


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
    profile_request: Path  # as this file appears, its node asks for a trace of the next steps
    cache_dir: Path  # shards of the dataset, shared by all processes of a node
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    @property
    def alone(self) -> bool:
        """Whether no node's agent looks after the job: nobody else ships its metrics."""
        return self.run == ALONE

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Self:
        """Raises InputError that names every variable missing or unreadable."""
        problems = [
            Problem(key=name, value=None, why="is not in the environment", fix=f"Set it to {what}")
            for name, what in _URIS.items()
            if not variables.get(name)
        ]

        def number(name: str, otherwise: int, least: int = 0) -> int:
            text = variables.get(name, str(otherwise))
            if not text.isdecimal() or int(text) < least:
                why, fix = f"is not a whole number of {least} or more", "Start the job by torchrun, or leave it out"
                problems.append(Problem(key=name, value=text, why=why, fix=fix))
                return otherwise
            return int(text)

        metrics = Path(variables.get("METRICS_DIR", "metrics"))
        cache = Path(tempfile.gettempdir()) / f"trainyard-cache-{os.getuid()}"
        found = cls(
            data_uri=variables.get("DATA_URI", ""),
            checkpoint_uri=variables.get("CHECKPOINT_URI", ""),
            results_uri=variables.get("RESULTS_URI", ""),
            resume_uri=variables.get("RESUME_URI") or None,
            run=variables.get("TRAINYARD_RUN", ALONE),
            attempt=number("TRAINYARD_ATTEMPT", 1),
            metrics_dir=metrics,
            checkpoint_request=Path(variables.get("CHECKPOINT_REQUEST") or metrics / "checkpoint-request"),
            profile_request=Path(variables.get("PROFILE_REQUEST") or metrics / "profile-request"),
            cache_dir=Path(variables.get("TRAINYARD_CACHE") or cache),
            rank=number("RANK", 0),
            local_rank=number("LOCAL_RANK", 0),
            world_size=number("WORLD_SIZE", 1, 1),
            local_world_size=number("LOCAL_WORLD_SIZE", 1, 1),
        )
        problems += list(found._misplaced()) if not problems else []
        if problems:
            raise InputError(problems)
        return found

    def _misplaced(self) -> Iterator[Problem]:
        """Ranks that torchrun would not have set: each process counts from 0 below the number of all."""
        both = (("RANK", self.rank, self.world_size), ("LOCAL_RANK", self.local_rank, self.local_world_size))
        for name, rank, ranks in both:
            if rank >= ranks:
                why = f"ranks count from 0, and {name.replace('RANK', 'WORLD_SIZE')} is {ranks}"
                yield Problem(key=name, value=rank, why=why, fix="Start the job by torchrun, which sets both")
        if self.world_size % self.local_world_size:
            why = f"a node has {self.local_world_size} (LOCAL_WORLD_SIZE), and all nodes have equally many"
            yield Problem(key="WORLD_SIZE", value=self.world_size, why=why, fix="Start the job by torchrun")


def read_config(path: Path, world_size: int, per_node: int) -> TrainerConfig:
    """The configuration for so many processes, `per_node` of them on each node.

    Raises InputError for an unreadable file, a wrong key or value, or what that number of processes can't run.
    """
    key = str(path)
    try:
        config = TrainerConfig.model_validate_json(path.read_bytes().removeprefix(BOM_UTF8))  # as some editors write it
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        if first["type"] == "json_invalid":  # whose value is the whole file
            why = f"is no JSON: {first['ctx']['error']}"
            raise InputError([Problem(key="--config", value=key, why=why, fix="Mend it")]) from None
        raise InputError(problems_of(error, "config", key)) from None
    except OSError as error:
        why = f"can't be read: {error.strerror}"
        raise InputError([Problem(key="--config", value=key, why=why, fix="Name a JSON file")]) from None
    if misfits := config.misfits(world_size, per_node):
        raise InputError([replace(misfit, key=f"config.{misfit.key}") for misfit in misfits])
    return config
