"""Transfer rate of a checkpoint to and from S3 over that of boto3's transfer manager, with the same server.

The trainer is measured with a whole save, from a training state in memory to the commit mark, and a whole load into the
tensors of a training state, with checksums. boto3 is measured with one file of the same size in its default
configuration, from and to memory and from and to a file; the faster counts. One process shares the machine's cores with
the server.
"""

import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script finds the project's packages
from benchmarks.options import AsJson, Runs, Server, StateMib
from benchmarks.s3_server import BUCKET, S3ServerError, find_server, read_version, run_server

MIB = 288


def measure(program: Path, mib: int, runs: int) -> dict[str, Any]:
    """Return medians of alternating runs after one warm-up; `ratio`: the lower ratio of both directions."""
    import boto3
    import torch
    import torch.distributed as dist
    from botocore.config import Config

    from benchmarks.training_state import state_of_size
    from trainer.checkpoints import Checkpoints
    from trainer.checkpoints.state import named_tensors
    from trainyard.config.training.config import CheckpointConfig

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    group = dist.group.WORLD
    assert group is not None
    state = state_of_size(mib)
    size = sum(tensor.nbytes for _, tensor in named_tensors(state.tensors()))
    content = torch.randint(0, 256, (size,), dtype=torch.uint8).numpy().tobytes()
    seconds: dict[str, list[float]] = {}
    with run_server(program), tempfile.TemporaryDirectory() as scratch:
        client = boto3.client(
            "s3", config=Config(s3={"addressing_style": "path"}), region_name=os.environ["AWS_REGION"]
        )
        source, target = Path(scratch) / "source", Path(scratch) / "target"
        source.write_bytes(content)
        with Checkpoints(f"s3://{BUCKET}/ours/", group, CheckpointConfig(keep_last=1)) as checkpoints:

            def save() -> None:
                state.progress.step += 1
                checkpoints.save(state)
                checkpoints.wait()

            pairs: list[tuple[dict[str, Callable[[], object]], dict[str, Callable[[], object]]]] = [
                (
                    {"up ours": save},
                    {
                        "up boto3 file": lambda: client.upload_file(str(source), BUCKET, "file"),
                        "up boto3 memory": lambda: client.upload_fileobj(io.BytesIO(content), BUCKET, "file"),
                    },
                ),
                (
                    {"down ours": lambda: checkpoints.resume(state)},
                    {
                        "down boto3 file": lambda: client.download_file(BUCKET, "file", str(target)),
                        "down boto3 memory": lambda: client.download_fileobj(BUCKET, "file", io.BytesIO()),
                    },
                ),
            ]
            for turn in range(runs + 1):
                for trainer, boto in pairs:
                    variants = list({**trainer, **boto}.items())
                    for name, transfer in reversed(variants) if turn % 2 else variants:
                        started = time.perf_counter()
                        transfer()
                        if turn:
                            seconds.setdefault(name, []).append(time.perf_counter() - started)
    dist.destroy_process_group()
    rates = {name: size / median(values) / 1e6 for name, values in seconds.items()}
    ratios = {
        direction: rates[f"{direction} ours"]
        / max(rates[f"{direction} boto3 file"], rates[f"{direction} boto3 memory"])
        for direction in ("up", "down")
    }
    return {
        "server": read_version(program),
        "mib": round(size / 2**20),
        "runs": runs,
        "mb_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "ratio_up": round(ratios["up"], 3),
        "ratio_down": round(ratios["down"], 3),
        "ratio": round(min(ratios.values()), 3),
    }


def main(as_json: AsJson = False, server: Server = None, mib: StateMib = MIB, runs: Runs = 7) -> None:
    """Measure the transfer rate of a checkpoint and of a file, to and from S3."""
    try:
        results = measure(find_server(server), mib, runs)
    except S3ServerError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(results))
        return
    print(f"{results['server']}, {results['mib']} MiB, medians of {results['runs']}")
    for name, rate in results["mb_per_second"].items():
        print(f"{name:>16}: {rate:.0f} MB/s")
    print(f"ratio {results['ratio']} (up {results['ratio_up']}, down {results['ratio_down']})")


if __name__ == "__main__":
    typer.run(main)
