"""Seconds to load a checkpoint: the trainer's reader over DCP's `load`, for three layouts.

The ranks on this machine, two by default, load the same state. `replicated`: each rank has the whole state, as in DDP,
and loads a checkpoint of that layout. `sharded`: each rank has its shards of FSDP. `resharded`: ranks with the whole
state load the checkpoint of the shards. The trainer's reader reads each entry above 64 KiB on one rank, sends it to the
ranks that need it and verifies its CRC-32. DCP reads for each rank what it needs and verifies nothing. The result is
the time of the slowest rank. Files, also those of the S3 server on this machine, are in the page cache.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the script finds the project's packages
from benchmarks.options import AsJson, Ranks, Runs, Server, StateMib
from benchmarks.ranks import MEASUREMENTS, describe, init_gloo, measure_in_ranks
from benchmarks.s3_server import BUCKET

MIB = 288
LAYOUTS = ("replicated", "sharded", "resharded")


class CheckpointLoadBenchmark:
    """States and checkpoints of one rank."""

    def __init__(self, mib: int) -> None:
        import torch.distributed as dist

        from benchmarks.training_state import state_of_size

        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        self._group = group
        self._states = {
            "replicated": state_of_size(mib, replicas=dist.group.WORLD),
            "sharded": state_of_size(mib, sharded=True),
        }

    def measure(self, store: str, runs: int) -> dict[str, dict[str, list[float]]]:
        """Return layout -> reader -> seconds of each run. `store`: a folder or an S3 prefix."""
        from trainer.checkpoints import Checkpoints
        from trainyard.config.training.config import CheckpointConfig

        with ExitStack() as stack:
            own = {
                name: stack.enter_context(Checkpoints(f"{store}/own-{name}", self._group, CheckpointConfig()))
                for name in self._states
            }
            for name, state in self._states.items():
                own[name].save(state)
                own[name].wait()
                self._save_by_dcp(name, f"{store}/dcp-{name}")
            seconds: dict[str, dict[str, list[float]]] = {name: {"trainyard": [], "dcp": []} for name in LAYOUTS}
            for turn in range(runs + 1):
                for layout in LAYOUTS:
                    state = self._states["sharded" if layout == "sharded" else "replicated"]
                    saved = "replicated" if layout == "replicated" else "sharded"
                    loads: dict[str, Callable[[], object]] = {
                        "trainyard": lambda saved=saved, state=state: own[saved].resume(state),  # type: ignore[misc]
                        "dcp": lambda saved=saved, state=state: self._load_by_dcp(  # type: ignore[misc]
                            state, f"{store}/dcp-{saved}"
                        ),
                    }
                    for reader, load in sorted(loads.items(), reverse=turn % 2 == 1):
                        elapsed = _slowest_rank(load)
                        if turn:
                            seconds[layout][reader].append(elapsed)
        return seconds

    def _save_by_dcp(self, name: str, uri: str) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        from benchmarks.training_state import content_of
        from trainer.checkpoints.s3 import s3_writer

        writer = s3_writer(f"{uri}/", 0) if uri.startswith("s3://") else FileSystemWriter(uri)
        save(content_of(self._states[name]), storage_writer=writer)

    def _load_by_dcp(self, state: Any, uri: str) -> None:
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        from benchmarks.training_state import content_of
        from trainer.checkpoints.s3 import s3_reader

        load(
            content_of(state), storage_reader=s3_reader(f"{uri}/") if uri.startswith("s3://") else FileSystemReader(uri)
        )


def _slowest_rank(operation: Callable[[], object]) -> float:
    """Return the seconds of an operation that all ranks start at the same time, of the rank that takes the longest."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    started = time.perf_counter()
    operation()
    elapsed = torch.tensor(time.perf_counter() - started)
    dist.all_reduce(elapsed, dist.ReduceOp.MAX)
    return float(elapsed)


def _run(rank: int, ranks: int, scratch: Path, s3: bool, mib: int, runs: int) -> None:
    import torch.distributed as dist

    warnings.filterwarnings("ignore", "Detected an existing checkpoint")  # of DCP in S3
    init_gloo(rank, ranks, scratch)
    benchmark = CheckpointLoadBenchmark(mib)
    stores = {"folder": str(scratch)} | ({"s3": f"s3://{BUCKET}/load"} if s3 else {})
    measurements = {name: benchmark.measure(store, runs) for name, store in stores.items()}
    if rank == 0:
        (scratch / MEASUREMENTS).write_text(json.dumps(measurements))
    dist.destroy_process_group()


def measure(server: Path | None, mib: int, runs: int, ranks: int) -> dict[str, Any]:
    """Return medians of alternating runs after one warm-up."""
    measurements, settings = measure_in_ranks(_run, server, ranks, mib=mib, runs=runs)
    seconds = {
        f"{layout} from {store}": {reader: round(median(values), 3) for reader, values in readers.items()}
        for store, layouts in measurements.items()
        for layout, readers in layouts.items()
    }
    ratios = {name: round(each["trainyard"] / each["dcp"], 2) for name, each in seconds.items()}
    return settings | {"seconds": seconds, "ratios": ratios}


def main(
    as_json: AsJson = False,
    server: Server = None,
    mib: StateMib = MIB,
    runs: Runs = 7,
    ranks: Ranks = 2,
) -> None:
    """Measure the seconds to load a checkpoint, for each layout and reader."""
    results = measure(server, mib, runs, ranks)
    if as_json:
        print(json.dumps(results))
        return
    print(describe(results))
    for name, each in results["seconds"].items():
        print(
            f"{name:>22}: trainyard {each['trainyard']:.3f} s, dcp {each['dcp']:.3f} s, ratio {results['ratios'][name]}"
        )


if __name__ == "__main__":
    typer.run(main)
