"""Changes of a configuration that reduce the memory of its ranks, the cheapest first."""

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from pydantic import ValidationError

from trainyard.config.dotted_keys import set_value
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig

_DEGREES = (2, 4, 8)


def smaller_configurations(
    config: TrainerConfig, world_size: int, per_node: int
) -> Iterator[tuple[TrainerConfig, list[str]]]:
    """Yield configurations, each with all changes of those before it and one more, and their changes as text.

    Configurations that `world_size` ranks, `per_node` on each node, cannot run are omitted.
    """
    changes: dict[str, str] = {}
    for key, value in _changes(config, world_size):
        settings = config.model_dump()
        set_value(settings, key, value)
        try:
            candidate = TrainerConfig.model_validate(settings)
        except ValidationError:  # such as float8 with too small parts
            continue
        if candidate.problems(world_size, per_node):
            continue
        first = changes.get(key, f"{key} {attrgetter(key)(config)}").partition(" -> ")[0]
        changes[key] = f"{first} -> {value}"
        config = candidate
        yield config, list(changes.values())


def _changes(config: TrainerConfig, world_size: int) -> Iterator[tuple[str, Any]]:
    if config.parallel.data == "ddp" and world_size > 1:
        yield "parallel.data", "fsdp"
    sizes = [size for size in range(config.micro_batch_size - 1, 0, -1) if config.micro_batch_size % size == 0]
    modes = ["selective", "full"] if isinstance(config.model, DecoderConfig) else []
    if config.memory.activation_checkpointing != "none":
        modes = [mode for mode in modes if mode == "full" != config.memory.activation_checkpointing]
    yield from (("micro_batch_size", size) for size in sizes[:1])
    yield from (("memory.activation_checkpointing", mode) for mode in modes)
    yield from (("micro_batch_size", size) for size in sizes[1:])
    if config.parallel.data == "hsdp":
        yield "parallel.data", "fsdp"
    if isinstance(config.model, DecoderConfig):
        yield from (("parallel.tensor", degree) for degree in _DEGREES if degree > config.parallel.tensor)
        yield from (("parallel.context", degree) for degree in _DEGREES if degree > config.parallel.context)
