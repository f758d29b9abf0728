"""Speed and memory of the trainer's memory options compared with plain fp32, on this machine's GPUs.

Each variant is one job on all GPUs per round, in rotating order. Results are medians over rounds; memory is the peak
allocation of rank 0's GPU, also over that of `python -m trainer plan`. Typical published values for automatic mixed
precision are 1.4 to 3 times the speed and half the memory. The default model has as many key heads as query heads: with
grouped-query attention torch may have no fast fp32 attention, which would count as a gain of precision.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script finds the project's packages
from benchmarks.options import AsJson
from benchmarks.trainer import WARMUP_STEPS, job_config, run_job, write_dataset
from trainer.plan.command import GIB, PlannedJob, plan_job
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig

BASE = "fp32"
MINIMUM_FEATURES = {"minimum_features": 512}  # of the default model, whose width is 768
CAPABILITIES = {"float8": (8, 9), "mxfp8": (10, 0), "nvfp4": (10, 0)}
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {"precision": "fp32", "memory": {"loss_chunk_tokens": None}},
    "bf16": {"precision": "bf16", "memory": {"loss_chunk_tokens": None}},
    "fp16": {"precision": "fp16", "memory": {"loss_chunk_tokens": None}},
    "bf16, logits in chunks": {"precision": "bf16"},
    "bf16, chunks, selective recomputation": {
        "precision": "bf16",
        "memory": {"activation_checkpointing": "selective"},
    },
    "bf16, chunks, full recomputation": {"precision": "bf16", "memory": {"activation_checkpointing": "full"}},
    "bf16, chunks, fsdp": {"precision": "bf16", "parallel": {"data": "fsdp"}},
    "bf16, chunks, not compiled": {"precision": "bf16", "memory": {"compile": False}},
    **{
        f"float8, chunks, fsdp, {recipe}": {
            "precision": "float8",
            "parallel": {"data": "fsdp"},
            "low_precision": {**MINIMUM_FEATURES, "float8_recipe": recipe},
        }
        for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp")
    },
    **{
        f"{precision}, chunks, fsdp": {
            "precision": precision,
            "parallel": {"data": "fsdp"},
            "low_precision": MINIMUM_FEATURES,
        }
        for precision in ("mxfp8", "nvfp4")
    },
}


def variant_config(variant: str, base: TrainerConfig) -> TrainerConfig:
    """Return the configuration of a variant."""
    settings = base.model_dump(mode="json", exclude_unset=True)
    for key, value in VARIANTS[variant].items():
        settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
    return TrainerConfig.model_validate(settings)


def planned_gib(config: TrainerConfig, processes: int) -> float:
    """Return the peak memory of rank 0 in the plan, GiB."""
    compiled = config.memory.compile is not False
    job = PlannedJob(config=config, ranks=processes, per_node=processes, gpu_gib=80.0, compiled=compiled)
    return plan_job(job)[0].peak_bytes / GIB


def measure(variant: str, base: TrainerConfig, folder: Path, processes: int) -> tuple[float, float]:
    """Return seconds per step and peak memory in GiB of one variant."""
    config = folder / "variant.json"
    config.write_text(variant_config(variant, base).model_dump_json())
    lines = run_job("trainyard", folder, config, processes)[WARMUP_STEPS:]
    return statistics.median(line["step_seconds"] for line in lines), max(line["memory_gib"] for line in lines)


def main(
    preset: Annotated[str, typer.Option(help="The model.")] = "124m",
    rounds: Annotated[int, typer.Option(min=1)] = 7,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps per round.")] = 6,
    as_json: AsJson = False,
) -> None:
    """Measure and print."""
    if not torch.cuda.is_available():
        typer.echo("benchmarks/memory.py needs a GPU, and this machine has none.", err=True)
        raise typer.Exit(2)
    processes = torch.cuda.device_count()
    capability = torch.cuda.get_device_capability()
    variants = [name for name, each in VARIANTS.items() if capability >= CAPABILITIES.get(each["precision"], (0, 0))]
    base = job_config(preset, processes, steps, "fp32")
    assert isinstance(base.model, DecoderConfig)
    results: dict[str, list[tuple[float, float]]] = {variant: [] for variant in variants}
    with tempfile.TemporaryDirectory() as folder:
        write_dataset(Path(folder), base.model.vocabulary)
        for number in range(rounds):
            turn = number % len(variants)
            for variant in variants[turn:] + variants[:turn]:
                results[variant].append(measure(variant, base, Path(folder), processes))
    seconds = {variant: statistics.median(value for value, _ in pairs) for variant, pairs in results.items()}
    memory = {variant: statistics.median(value for _, value in pairs) for variant, pairs in results.items()}
    planned = {variant: planned_gib(variant_config(variant, base), processes) for variant in variants}
    tokens = base.batch_size * base.model.sequence_length
    report = {
        "ratio": round(seconds[BASE] / seconds["bf16"], 2),
        "device": f"{processes} x {torch.cuda.get_device_name()}",
        "model": preset,
        "rounds": rounds,
        "variants": {
            variant: {
                "tokens_per_second": round(tokens / seconds[variant], 1),
                "speed": round(seconds[BASE] / seconds[variant], 2),
                "gib": round(memory[variant], 2),
                "memory": round(memory[variant] / memory[BASE], 2),
                "over_plan": round(memory[variant] / planned[variant], 2),
            }
            for variant in variants
        },
    }
    if as_json:
        print(json.dumps(report))
        return
    table = Table("", "tokens/s", "speed", "GiB", "memory", "over plan", title=f"{report['device']}, {preset}")
    for variant in variants:
        rate, gib = tokens / seconds[variant], memory[variant]
        table.add_row(
            variant,
            f"{rate:,.0f}",
            f"{seconds[BASE] / seconds[variant]:.2f} x",
            f"{gib:.2f}",
            f"{gib / memory[BASE]:.2f}",
            f"{gib / planned[variant]:.2f}",
        )
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
