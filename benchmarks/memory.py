"""Speed and memory of the trainer's ways to save either, each against fp32 without any, on this machine's GPUs.

One job a way, on all GPUs, in an order that turns round by round. A figure is the median of its rounds; memory is what
rank 0's GPU has allocated at most. What to hold the figures against: the field gives 1.4 to 3 times the speed and half
the memory for automatic mixed precision. The default model has as many key heads as query heads: where several of
these share one, torch may have no fast attention in fp32, and that would count as the gain of precision.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started as a file, it finds the rooms
from benchmarks.options import AsJson
from benchmarks.trainer import WARM_UP, dataset, job, lines_of
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig

BASE = "fp32"
FLOAT8 = (8, 9)  # compute capability
WAYS: dict[str, dict[str, Any]] = {
    BASE: {"precision": "fp32", "memory": {"loss_chunk": None}},
    "bf16": {"precision": "bf16", "memory": {"loss_chunk": None}},
    "fp16": {"precision": "fp16", "memory": {"loss_chunk": None}},
    "bf16, logits in chunks": {"precision": "bf16"},
    "bf16, chunks, selective recomputation": {
        "precision": "bf16",
        "memory": {"activation_checkpointing": "selective"},
    },
    "bf16, chunks, full recomputation": {"precision": "bf16", "memory": {"activation_checkpointing": "full"}},
    "bf16, chunks, fsdp": {"precision": "bf16", "parallel": {"data": "fsdp"}},
    "float8, chunks": {"precision": "float8"},
}


def measure(way: str, base: TrainerConfig, folder: Path, processes: int) -> tuple[float, float]:
    """Seconds a step, and GiB."""
    given = base.model_dump(mode="json", exclude_unset=True)
    for key, value in WAYS[way].items():
        given[key] = {**given.get(key, {}), **value} if isinstance(value, dict) else value
    config = folder / "way.json"
    config.write_text(TrainerConfig.model_validate(given).model_dump_json())
    lines = lines_of("ours", folder, config, processes)[WARM_UP:]
    return statistics.median(line["step_seconds"] for line in lines), max(line["memory_gib"] for line in lines)


def main(
    preset: Annotated[str, typer.Option(help="The model.")] = "124m",
    rounds: Annotated[int, typer.Option(min=1)] = 7,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a round that count.")] = 6,
    as_json: AsJson = False,
) -> None:
    """Measure and print."""
    if not torch.cuda.is_available():
        typer.echo("benchmarks/memory.py measures GPUs, and this machine has none.", err=True)
        raise typer.Exit(2)
    processes = torch.cuda.device_count()
    ways = [way for way in WAYS if not way.startswith("float8") or torch.cuda.get_device_capability() >= FLOAT8]
    base = job(preset, processes, steps, "fp32")
    assert isinstance(base.model, DecoderConfig)
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as name:
        dataset(Path(name), base.model.vocabulary)
        for number in range(rounds):
            turn = number % len(ways)
            for way in ways[turn:] + ways[:turn]:
                found[way].append(measure(way, base, Path(name), processes))
    seconds = {way: statistics.median(each for each, _ in of_way) for way, of_way in found.items()}
    memory = {way: statistics.median(each for _, each in of_way) for way, of_way in found.items()}
    tokens = base.batch_size * base.model.sequence_length
    said = {
        "ratio": round(seconds[BASE] / seconds["bf16"], 2),
        "device": f"{processes} x {torch.cuda.get_device_name()}",
        "model": preset,
        "rounds": rounds,
        "ways": {
            way: {
                "tokens_per_second": round(tokens / seconds[way], 1),
                "speed": round(seconds[BASE] / seconds[way], 2),
                "gib": round(memory[way], 2),
                "memory": round(memory[way] / memory[BASE], 2),
            }
            for way in ways
        },
    }
    if as_json:
        print(json.dumps(said))
        return
    table = Table("", "tokens/s", "speed", "GiB", "memory", title=f"{said['device']}, {preset}")
    for way in ways:
        rate, gib = tokens / seconds[way], memory[way]
        table.add_row(
            way, f"{rate:,.0f}", f"{seconds[BASE] / seconds[way]:.2f} x", f"{gib:.2f}", f"{gib / memory[BASE]:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
