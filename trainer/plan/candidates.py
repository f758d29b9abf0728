"""Changes of a configuration that reduce the memory of its ranks, the cheapest first."""

from collections.abc import Iterator
from typing import Any

from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig

_TENSOR_DEGREES = (2, 4, 8)


def smaller_configurations(
    config: TrainerConfig, world_size: int, per_node: int
) -> Iterator[tuple[TrainerConfig, list[str]]]:
    """Yield configurations, each with all changes of those before it and one more, and their changes as text.

    Configurations that `world_size` ranks, `per_node` on each node, cannot run are omitted.
    """
    changes: dict[str, str] = {}
    for key, value in _changes(config):
        candidate = _with(config, key, value)
        if candidate.problems(world_size, per_node):
            continue
        before = _value(config, key)
        first = changes.get(key, f"{key} {before} -> ").partition(" -> ")[0]
        changes[key] = f"{first} -> {value}"
        config = candidate
        yield config, list(changes.values())


def _changes(config: TrainerConfig) -> Iterator[tuple[str, Any]]:
    if config.parallel.data == "ddp":
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
        yield from (("parallel.tensor", degree) for degree in _TENSOR_DEGREES if degree > config.parallel.tensor)


def _with(config: TrainerConfig, key: str, value: Any) -> TrainerConfig:
    section, _, name = key.rpartition(".")
    if not section:
        return config.model_copy(update={name: value})
    return config.model_copy(update={section: getattr(config, section).model_copy(update={name: value})})


def _value(config: TrainerConfig, key: str) -> Any:
    result: Any = config
    for name in key.split("."):
        result = getattr(result, name)
    return result
