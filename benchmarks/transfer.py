"""Rate of a checkpoint to S3 and back over that of boto3's transfer manager, on the same server.

Ours: all of a save, from a training state in memory to the commit mark; and all of a load, into the tensors of a
training state, each byte checked. boto3's: one file of the same size from memory and to memory, in its default
configuration, and from a file and to a file; the faster of the two counts. One process, which shares the machine's
cores with the server.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started as a file, it finds the rooms
from benchmarks.options import AsJson, Runs, Server, StateMib
from benchmarks.s3_server import BUCKET, NoServer, find, serving, version

MIB = 288


def measure(program: Path, mib: int, runs: int) -> dict[str, Any]:
    """Medians of runs that take turns, after one warm-up; `ratio`: the lower of both directions'."""
    import boto3
    import torch
    import torch.distributed as dist
    from botocore.config import Config

    from benchmarks.states import state_of_size
    from trainer.checkpoints import Checkpoints
    from trainer.checkpoints.state import tensors_of
    from trainyard.config.training.config import CheckpointConfig

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    group = dist.group.WORLD
    assert group is not None
    state = state_of_size(mib)
    size = sum(tensor.nbytes for _, tensor in tensors_of(state.tensors()))
    content = torch.randint(0, 256, (size,), dtype=torch.uint8).numpy().tobytes()
    seconds: dict[str, list[float]] = {}
    with serving(program), tempfile.TemporaryDirectory() as scratch:
        client = boto3.client(
            "s3", config=Config(s3={"addressing_style": "path"}), region_name=os.environ["AWS_REGION"]
        )
        source, target = Path(scratch) / "source", Path(scratch) / "target"
        source.write_bytes(content)
        with Checkpoints(f"s3://{BUCKET}/ours/", group, CheckpointConfig(keep=1)) as checkpoints:

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
                for ours, theirs in pairs:
                    ways = list({**ours, **theirs}.items())
                    for name, way in reversed(ways) if turn % 2 else ways:
                        began = time.perf_counter()
                        way()
                        if turn:
                            seconds.setdefault(name, []).append(time.perf_counter() - began)
    dist.destroy_process_group()
    rates = {name: size / median(taken) / 1e6 for name, taken in seconds.items()}
    ratios = {
        way: rates[f"{way} ours"] / max(rates[f"{way} boto3 file"], rates[f"{way} boto3 memory"])
        for way in ("up", "down")
    }
    return {
        "server": version(program),
        "mib": round(size / 2**20),
        "runs": runs,
        "mb_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "ratio_up": round(ratios["up"], 3),
        "ratio_down": round(ratios["down"], 3),
        "ratio": round(min(ratios.values()), 3),
    }


def main(as_json: AsJson = False, server: Server = None, mib: StateMib = MIB, runs: Runs = 7) -> None:
    """MB/s of a checkpoint and of a plain file, to S3 and back."""
    try:
        found = measure(find(server), mib, runs)
    except NoServer as error:
        raise typer.Exit(_told(error)) from None
    if as_json:
        print(json.dumps(found))
        return
    print(f"{found['server']}, {found['mib']} MiB, medians of {found['runs']}")
    for name, rate in found["mb_per_second"].items():
        print(f"{name:>16}: {rate:.0f} MB/s")
    print(f"ratio {found['ratio']} (up {found['ratio_up']}, down {found['ratio_down']})")


def _told(error: Exception) -> int:
    print(error, file=sys.stderr)
    return 2


if __name__ == "__main__":
    typer.run(main)
