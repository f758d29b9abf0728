"""Tokens a second of the trainer's loop over those of the fastest of two loops that others write, on the same model.

With them the share of the chips' peak (MFU), where that is known. Of the large models one sample fits a GPU at a time,
and their state its own part: `--preset 1b --micro-batch 1 --data fsdp` takes GPUs of 80 GB.

Each round starts each loop as a job of its own, in an order that turns round by round. A loop's figure is the median
of its rounds, a round's the median of its steps but the first two.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started as a file, it finds the rooms
from benchmarks.options import AsJson
from trainer.models import build
from trainer.telemetry.flops import peak_flops, utilization
from trainyard.config.training import TrainerConfig
from trainyard.config.training.models import DecoderConfig
from trainyard.models.dataset import INDEX, Shard, TokenDataset

ROOT = Path(__file__).resolve().parents[1]
LOOPS = ("ours", "plain", "nanogpt")
WARM_UP = 2


class Data(StrEnum):
    DDP = "ddp"
    FSDP = "fsdp"


def dataset(folder: Path, vocabulary: int) -> None:
    """Token ids as often as words are in text: one in n times as rare as the commonest."""
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


def job(
    preset: str,
    processes: int,
    steps: int,
    precision: str,
    *,
    micro: int | None = None,
    data: str = "ddp",
    length: int | None = None,
) -> TrainerConfig:
    """Of two micro-batches a step and rank; `micro` None: 8 samples on a GPU, else 4; `length` None: the preset's."""
    model = DecoderConfig.model_validate({"preset": preset} | ({"sequence_length": length} if length else {}))
    micro = micro or (8 if torch.cuda.is_available() else 4)
    given: dict[str, Any] = {
        "model": model.model_dump(),
        "steps": steps + WARM_UP,
        "batch_size": 2 * micro * processes,
        "micro_batch_size": micro,
        "precision": precision,
        "parallel": {"data": data},
        "checkpoint": {"every": 10**6},
        "evaluation": {"every": 10**6},
        "threads": None if torch.cuda.is_available() else max(1, (os.cpu_count() or 1) // processes),
    }
    return TrainerConfig.model_validate(given)


def lines_of(loop: str, folder: Path, config: Path, processes: int, **variables: str) -> list[dict[str, Any]]:
    """What one job, started anew, tells of each of its steps. `variables` of its environment: its data are in `folder`
    where these name no other place."""
    at = Path(tempfile.mkdtemp(dir=folder))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "GLOO_SOCKET_IFNAME": "lo",
        "DATA_URI": str(folder),
        "CHECKPOINT_URI": str(at / "checkpoints"),
        "RESULTS_URI": str(at / "results"),
        "METRICS_DIR": str(at / "metrics"),
        **variables,
    }
    words = ["trainer", "--config", str(config)] if loop == "ours" else ["benchmarks.loops", loop, str(config)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
    done = subprocess.run(
        [*torchrun, *words], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=False
    )
    if done.returncode:
        raise SystemExit(f"the loop {loop} ended with status {done.returncode}:\n{done.stderr[-4000:]}")
    told = (at / "metrics/metrics.jsonl").read_text() if loop == "ours" else done.stdout
    return [json.loads(line) for line in told.splitlines() if line.startswith("{")]


def seconds_a_step(lines: list[dict[str, Any]]) -> float:
    seconds: list[float] = [line["step_seconds"] for line in lines[WARM_UP:]]
    return statistics.median(seconds)


def main(
    preset: Annotated[str | None, typer.Option(help="The model; none: 10m, on a GPU 124m.")] = None,
    processes: Annotated[int | None, typer.Option(help="Ranks; none: 2, on GPUs one each.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp32 or bf16; none: fp32, on a GPU bf16.")] = None,
    micro_batch: Annotated[int | None, typer.Option(min=1, help="Samples; none: 4, on a GPU 8.")] = None,
    data: Annotated[Data, typer.Option(help="What each rank holds: the whole model, or its part.")] = Data.DDP,
    sequence_length: Annotated[int | None, typer.Option(min=2, help="Tokens; none: the preset's.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 7,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a round that count.")] = 6,
    as_json: AsJson = False,
) -> None:
    """Measure and print."""
    gpus = torch.cuda.device_count()
    preset, processes = preset or ("124m" if gpus else "10m"), processes or gpus or 2
    precision = precision or ("bf16" if gpus else "fp32")
    given: dict[str, Any] = {"micro": micro_batch, "data": data.value, "length": sequence_length}
    config = job(preset, processes, steps, precision, **given)
    assert isinstance(config.model, DecoderConfig)
    found: dict[str, list[float]] = {loop: [] for loop in LOOPS}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset(folder, config.model.vocabulary)
        (folder / "config.json").write_text(config.model_dump_json())
        for number in range(rounds):
            turn = number % len(LOOPS)
            for loop in LOOPS[turn:] + LOOPS[:turn]:
                lines = lines_of(loop, folder, folder / "config.json", processes)
                found[loop].append(seconds_a_step(lines))
                if not as_json:
                    print(f"round {number + 1}: {loop} {found[loop][-1]:.3f} s a step", flush=True)
    tokens = config.batch_size * config.model.sequence_length
    medians = {loop: statistics.median(seconds) for loop, seconds in found.items()}
    rates = {loop: tokens / seconds for loop, seconds in medians.items()}
    flops = build(config).flops
    assert flops is not None, "a decoder has a formula"
    peak = peak_flops(torch.device("cuda", 0), config.precision) if gpus else None
    shares = {loop: utilization(flops * config.batch_size, each, processes, peak) for loop, each in medians.items()}
    said = {
        "ratio": round(rates["ours"] / max(rates[loop] for loop in LOOPS[1:]), 3),
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
    print(json.dumps(said) if as_json else json.dumps(said, indent=1))


if __name__ == "__main__":
    typer.run(main)
