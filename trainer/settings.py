"""Read the job's settings: the configuration file, and the environment variables of the node and torchrun."""

import os
import tempfile
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import HuggingFaceConfig, LanguageModelConfig
from trainyard.config.validation_errors import problems_from
from trainyard.errors import InputError, Problem

_URIS = {
    "DATA_URI": "the dataset, the folder of its dataset.json",
    "CHECKPOINT_URI": "the folder of this run's checkpoints",
    "RESULTS_URI": "the folder of this run's results",
}
STANDALONE_RUN = "standalone"  # run id of a job without a cluster


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Settings of this process from its environment variables. URIs are `s3://...` or folders."""

    data_uri: str
    checkpoint_uri: str
    results_uri: str
    resume_uri: str | None  # checkpoints of another run, used if this run has none
    run: str
    attempt: int
    metrics_dir: Path
    checkpoint_request: Path  # if this file exists, a checkpoint is saved at the next step
    profile_request: Path  # if this file appears, the next steps are traced
    memory_dir: Path | None  # folder in host memory, for copies of the newest state
    cache_dir: Path  # shards of the dataset, shared by all processes of a node
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    @property
    def nodes(self) -> int:
        """Number of nodes of the job."""
        return self.world_size // self.local_world_size

    @property
    def is_standalone(self) -> bool:
        """Whether the job runs without a node's agent, which would upload its metrics."""
        return self.run == STANDALONE_RUN

    @classmethod
    def read(cls, variables: Mapping[str, str]) -> Self:
        """Read environment variables. Raises InputError that names each missing or invalid variable."""
        problems = [
            Problem(name, None, "is not set", f"Set it to {description}", "variable_missing")
            for name, description in _URIS.items()
            if not variables.get(name)
        ]

        def number(name: str, default: int, minimum: int = 0) -> int:
            text = variables.get(name, str(default))
            if not text.isdecimal() or int(text) < minimum:
                reason, fix = f"is not an integer of {minimum} or more", "Start the job by torchrun, or unset it"
                problems.append(Problem(name, text, reason, fix, "invalid_integer"))
                return default
            return int(text)

        metrics = Path(variables.get("METRICS_DIR", "metrics"))
        cache = Path(tempfile.gettempdir()) / f"trainyard-cache-{os.getuid()}"
        environment = cls(
            data_uri=variables.get("DATA_URI", ""),
            checkpoint_uri=variables.get("CHECKPOINT_URI", ""),
            results_uri=variables.get("RESULTS_URI", ""),
            resume_uri=variables.get("RESUME_URI") or None,
            run=variables.get("TRAINYARD_RUN", STANDALONE_RUN),
            attempt=number("TRAINYARD_ATTEMPT", 1),
            metrics_dir=metrics,
            checkpoint_request=Path(variables.get("CHECKPOINT_REQUEST") or metrics / "checkpoint-request"),
            profile_request=Path(variables.get("PROFILE_REQUEST") or metrics / "profile-request"),
            memory_dir=Path(memory) if (memory := variables.get("TRAINYARD_MEMORY")) else None,
            cache_dir=Path(variables.get("TRAINYARD_CACHE") or cache),
            rank=number("RANK", 0),
            local_rank=number("LOCAL_RANK", 0),
            world_size=number("WORLD_SIZE", 1, 1),
            local_world_size=number("LOCAL_WORLD_SIZE", 1, 1),
        )
        problems += list(environment._rank_problems()) if not problems else []
        if problems:
            raise InputError(problems)
        return environment

    def _rank_problems(self) -> Iterator[Problem]:
        """Yield problems of ranks and world sizes that torchrun would not set."""
        pairs = (("RANK", self.rank, self.world_size), ("LOCAL_RANK", self.local_rank, self.local_world_size))
        for name, rank, world_size in pairs:
            if rank >= world_size:
                reason = f"must be less than {name.replace('RANK', 'WORLD_SIZE')}, which is {world_size}"
                yield Problem(name, rank, reason, "Start the job by torchrun, which sets both", "rank_out_of_range")
        if self.world_size % self.local_world_size:
            reason = f"is not a multiple of LOCAL_WORLD_SIZE, which is {self.local_world_size} on each node"
            yield Problem("WORLD_SIZE", self.world_size, reason, "Start the job by torchrun", "nodes_of_unequal_size")


def load_config(path: Path, world_size: int, per_node: int) -> TrainerConfig:
    """Load the configuration file of a job of `world_size` processes, `per_node` of them on each node.

    Raises InputError for an unreadable file, an invalid key or value, or a configuration that this number of processes
    cannot run.
    """
    file = str(path)
    try:
        config = TrainerConfig.model_validate_json(path.read_bytes().removeprefix(BOM_UTF8))  # some editors write a BOM
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        if first["type"] == "json_invalid":  # the value of this error is the whole file
            reason = f"is not valid JSON: {first['ctx']['error']}"
            raise InputError([Problem("--config", file, reason, "Fix the syntax", "invalid_json")]) from None
        raise InputError(problems_from(error, "config", file, TrainerConfig)) from None
    except OSError as error:
        reason = f"cannot be read: {error.strerror}"
        raise InputError([Problem("--config", file, reason, "Set it to a JSON file", "config_not_readable")]) from None
    config = resolve_model(config)
    if problems := config.problems(world_size, per_node):
        raise InputError([replace(problem, key=f"config.{problem.key}") for problem in problems])
    return config


def resolve_model(config: TrainerConfig) -> TrainerConfig:
    """Return the configuration with the location of the model and, for the decoder, its shape in config.json.

    Raises InputError if the model cannot be read, or if the configuration does not fit it.
    """
    model = config.model
    if not isinstance(model, LanguageModelConfig) or model.path is None:
        return config
    from trainer.models.pretrained import locate, resolve_decoder  # imports torch's and transformers' packages

    if isinstance(model, HuggingFaceConfig):
        return config.model_copy(update={"model": model.model_copy(update={"path": locate(model)})})
    resolved = config.model_copy(update={"model": resolve_decoder(model)})
    try:
        return TrainerConfig.model_validate(resolved.model_dump())
    except ValidationError as error:
        raise InputError(problems_from(error, "config", model.path, TrainerConfig)) from None
