"""Run a benchmark in several processes of one torch.distributed job, with an S3 server if one is available."""

import json
import multiprocessing
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.s3_server import S3ServerError, find_server, read_version, run_server

MEASUREMENTS = "measurements.json"
RankFunction = Callable[[int, int, Path, bool, int, int], None]


def measure_in_ranks(
    function: RankFunction, server: Path | None, ranks: int, *, mib: int, runs: int
) -> tuple[Any, dict[str, Any]]:
    """Return the measurements that rank 0 has written to MEASUREMENTS, and the settings of the benchmark.

    `function` runs in each process, with its rank, the number of ranks, a scratch folder, whether S3 is available, mib
    and runs. Raises SystemExit if a rank fails.
    """
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        settings: dict[str, Any] = {"ranks": ranks, "mib": mib, "runs": runs, "server": None, "s3_unavailable": None}
        try:
            program = find_server(server)
            stack.enter_context(run_server(program))
            settings["server"] = read_version(program)
        except S3ServerError as error:
            settings["s3_unavailable"] = str(error)
        context = multiprocessing.get_context("spawn")
        arguments = (ranks, scratch, settings["server"] is not None, mib, runs)
        processes = [context.Process(target=function, args=(rank, *arguments)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"ranks exited with {[process.exitcode for process in processes]}")
        return json.loads((scratch / MEASUREMENTS).read_text()), settings


def describe(settings: dict[str, Any]) -> str:
    """Return the settings as text."""
    text = (
        f"{settings['mib']} MiB on {settings['ranks']} ranks, medians of {settings['runs']}; S3: {settings['server']}"
    )
    return text if settings["s3_unavailable"] is None else f"{text}\n{settings['s3_unavailable']}"


def init_gloo(rank: int, ranks: int, scratch: Path) -> None:
    """Initialize torch.distributed with gloo, and one CPU thread in each rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=ranks)
