"""Tokens per second of the trainer over those of the faster of two baseline loops, on the same model.

The report includes model FLOPs utilization (MFU) if the GPU's peak is known. For large models use one sample per GPU
and sharded state: `--preset 1b --micro-batch 1 --data fsdp` needs GPUs of 80 GB.

Each round starts each loop as a separate job, in rotating order. A loop's result is the median of its rounds, a round's
result the median of its steps without the first two.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script finds the project's packages
from benchmarks.options import AsJson
from trainer.models import build
from trainer.telemetry.flops import peak_flops, utilization
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig
from trainyard.models.dataset import INDEX, Shard, TokenDataset

ROOT = Path(__file__).resolve().parents[1]
LOOPS = ("trainyard", "plain", "nanogpt")
WARMUP_STEPS = 2


class DataParallelism(StrEnum):
    DDP = "ddp"
    FSDP = "fsdp"


def write_dataset(folder: Path, vocabulary: int) -> None:
    """Write random token ids with the frequencies of words in text (Zipf's law)."""
    draws = np.random.default_rng(0).zipf(1.1, 4_000_000)
    dtype: Literal["uint16", "uint32"] = "uint16" if vocabulary <= 2**16 else "uint32"
    tokens = (draws[draws <= vocabulary] - 1).astype(dtype)
    shards = {}
    for key, part in {"train.bin": tokens[:-100_000], "held-out.bin": tokens[-100_000:]}.items():
        content = part.tobytes()
        (folder / key).write_bytes(content)
        shards[key] = Shard(key=key, count=len(part), bytes=len(content), sha256=sha256(content).hexdigest())
    index = TokenDataset(
        name="zipf",
        source="drawn",
        dtype=dtype,
        vocabulary=vocabulary,
        train=(shards["train.bin"],),
        validation=(shards["held-out.bin"],),
    )
    (folder / INDEX).write_text(index.model_dump_json())


def job_config(
    preset: str,
    processes: int,
    steps: int,
    precision: str,
    *,
    micro: int | None = None,
    data: str = "ddp",
    length: int | None = None,
) -> TrainerConfig:
    """Return the configuration of a job with two micro-batches per step and rank.

    `micro`: samples per micro-batch; None: 8 on a GPU, else 4. `length`: tokens per sample; None: that of the preset.
    """
    model = DecoderConfig.model_validate({"preset": preset} | ({"sequence_length": length} if length else {}))
    micro = micro or (8 if torch.cuda.is_available() else 4)
    settings: dict[str, Any] = {
        "model": model.model_dump(),
        "steps": steps + WARMUP_STEPS,
        "batch_size": 2 * micro * processes,
        "micro_batch_size": micro,
        "precision": precision,
        "parallel": {"data": data},
        "data": {"separate_documents": False},  # as the other loops
        "checkpoint": {"interval_steps": 10**6},
        "evaluation": {"interval_steps": 10**6},
        "threads": None if torch.cuda.is_available() else max(1, (os.cpu_count() or 1) // processes),
    }
    return TrainerConfig.model_validate(settings)


def run_job(loop: str, folder: Path, config: Path, processes: int, **variables: str) -> list[dict[str, Any]]:
    """Run one job and return the metrics of each step.

    `variables`: additional environment variables; by default the dataset is in `folder`.
    """
    output = Path(tempfile.mkdtemp(dir=folder))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "DATA_URI": str(folder),
        "CHECKPOINT_URI": str(output / "checkpoints"),
        "RESULTS_URI": str(output / "results"),
        "METRICS_DIR": str(output / "metrics"),
        **variables,
    }
    baseline = ["benchmarks.baseline_loops", loop, str(config)]
    arguments = ["trainer", "--config", str(config)] if loop == "trainyard" else baseline
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    process = subprocess.run(
        [*torchrun, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    if process.returncode:
        raise SystemExit(f"the loop {loop} exited with status {process.returncode}:\n{process.stderr[-4000:]}")
    text = (output / "metrics/metrics.jsonl").read_text() if loop == "trainyard" else process.stdout
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def median_step_seconds(lines: list[dict[str, Any]]) -> float:
    seconds: list[float] = [line["step_seconds"] for line in lines[WARMUP_STEPS:]]
    return statistics.median(seconds)


def main(
    preset: Annotated[str | None, typer.Option(help="Model preset; none: 10m, on a GPU 124m.")] = None,
    processes: Annotated[int | None, typer.Option(help="Ranks; none: 2, or one per GPU.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16; none: fp32, on a GPU bf16.")] = None,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="Samples per micro-batch; none: 4, on a GPU 8.")
    ] = None,
    data: Annotated[DataParallelism, typer.Option(help="Data parallelism.")] = DataParallelism.DDP,
    sequence_length: Annotated[int | None, typer.Option(min=2, help="Tokens; none: the preset's.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 7,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps per round.")] = 6,
    as_json: AsJson = False,
) -> None:
    """Measure and print."""
    gpus = torch.cuda.device_count()
    preset, processes = preset or ("124m" if gpus else "10m"), processes or gpus or 2
    precision = precision or ("bf16" if gpus else "fp32")
    options: dict[str, Any] = {"micro": micro_batch, "data": data.value, "length": sequence_length}
    config = job_config(preset, processes, steps, precision, **options)
    assert isinstance(config.model, DecoderConfig)
    seconds_by_loop: dict[str, list[float]] = {loop: [] for loop in LOOPS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_dataset(folder, config.model.vocabulary)
        (folder / "config.json").write_text(config.model_dump_json())
        for number in range(rounds):
            turn = number % len(LOOPS)
            for loop in LOOPS[turn:] + LOOPS[:turn]:
                lines = run_job(loop, folder, folder / "config.json", processes)
                seconds_by_loop[loop].append(median_step_seconds(lines))
                if not as_json:
                    print(f"round {number + 1}: {loop} {seconds_by_loop[loop][-1]:.3f} s per step", flush=True)
    tokens = config.batch_size * config.model.sequence_length
    medians = {loop: statistics.median(seconds) for loop, seconds in seconds_by_loop.items()}
    rates = {loop: tokens / seconds for loop, seconds in medians.items()}
    flops = build(config).flops
    assert flops is not None, "FLOPs of a decoder are known"
    peak = peak_flops(torch.device("cuda", 0), config.precision) if gpus else None
    shares = {
        loop: utilization(flops * config.batch_size, seconds, processes, peak) for loop, seconds in medians.items()
    }
    report = {
        "ratio": round(rates["trainyard"] / max(rates[loop] for loop in LOOPS[1:]), 3),
        "tokens_per_second": {loop: round(rate, 1) for loop, rate in rates.items()},
        "mfu": {loop: share and round(share, 4) for loop, share in shares.items()},
        "model": preset,
        "parameters": config.model.parameters,
        "sequence_length": config.model.sequence_length,
        "micro_batch": config.micro_batch_size,
        "data": config.parallel.data,
        "processes": processes,
        "precision": config.precision,
        "device": torch.cuda.get_device_name() if gpus else f"CPU, {os.cpu_count()} cores",
        "rounds": rounds,
    }
    print(json.dumps(report) if as_json else json.dumps(report, indent=1))


if __name__ == "__main__":
    typer.run(main)
