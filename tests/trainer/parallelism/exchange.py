"""Count the collectives of two ranks in a step: `torchrun -m tests.trainer.parallelism.exchange FILE`.

FILE gets a JSON object with the number of collectives by kind for each layout, in a step of one and of three
micro-batches, the timeouts of process groups, and the time that each rank waits for a slow rank 1, in seconds.
"""

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.trainer.conftest import TINY
from trainer.distributed import DistributedContext, init_distributed
from trainer.failures import flight_recorder
from trainer.models import build
from trainer.parallelism import build_forward_backward, parallelize, wrap_in_ddp
from trainer.precision import Precision
from trainer.settings import Environment
from trainer.telemetry.timing import StepTimer
from trainyard.config.training import TrainerConfig

CPU = torch.device("cpu")
RANKS = 2
SLOW_SECONDS = 0.5
TIMEOUT = 2000


def count_collectives(config: TrainerConfig, distributed: DistributedContext) -> dict[str, int]:
    precision = Precision(config, CPU)
    model = build(config)
    parallelize(model, config, distributed, precision)
    module = wrap_in_ddp(model, config, distributed)
    forward_backward = build_forward_backward(module, config, distributed, precision)
    tokens = torch.randint(0, 256, (2, 33))
    batches = repeat((tokens[:, :-1], tokens[:, 1:]))
    forward_backward.warm_up(next(batches))
    forward_backward.compute_gradients(batches, StepTimer(CPU))
    last = max(entry["time_created_ns"] for entry in flight_recorder.read_entries())
    forward_backward.compute_gradients(batches, StepTimer(CPU))
    entries = [entry for entry in flight_recorder.read_entries() if entry["time_created_ns"] > last]
    return Counter(entry["profiling_name"] for entry in entries)


def waiting_seconds(config: TrainerConfig, distributed: DistributedContext) -> list[float]:
    """Return the seconds that each rank waits for the other in a step in which rank 1 is slow."""
    precision = Precision(config, CPU)
    model = build(config)
    parallelize(model, config, distributed, precision)
    module = wrap_in_ddp(model, config, distributed)
    forward_backward = build_forward_backward(module, config, distributed, precision)
    tokens = torch.randint(0, 256, (2, 33))
    batch, timer = (tokens[:, :-1], tokens[:, 1:]), StepTimer(CPU)

    def slow_batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            time.sleep(SLOW_SECONDS * distributed.rank)
            yield batch

    forward_backward.warm_up(batch)
    forward_backward.compute_gradients(repeat(batch), timer)  # the first step also agrees on the order of gradients
    timer.start()
    forward_backward.compute_gradients(slow_batches(), timer)
    seconds: list[float] = [0.0] * RANKS
    dist.all_gather_object(seconds, timer.finish()().waiting)
    assert forward_backward.measures_waiting
    return seconds


def timeout_seconds(group: Any) -> float:
    seconds: float = group._get_backend(CPU).options._timeout.total_seconds()
    return seconds


def layout_config(kind: str, micro_batches: int) -> TrainerConfig:
    data, _, per_step = kind.partition(" ")
    parallel = {"data": data, "reduce_per_step": bool(per_step)} | ({"shard": 1} if data == "hsdp" else {})
    batch = {"batch_size": 2 * RANKS * micro_batches, "timeouts": {"evaluation_seconds": TIMEOUT}}
    return TrainerConfig.model_validate(TINY | batch | {"parallel": parallel})


def main() -> None:
    variables = {"CHECKPOINT_URI": "/none", "RESULTS_URI": "/none", "DATA_URI": "/none"}
    environment = Environment.read(os.environ | variables)
    results: dict[str, Any] = {}
    with init_distributed(layout_config("ddp", 1), environment, CPU) as shared:  # one process group for all layouts
        for kind in ("ddp", "fsdp", "fsdp per step", "hsdp", "hsdp per step"):
            for micro_batches in (1, 3):
                config = layout_config(kind, micro_batches)
                with init_distributed(config, environment, CPU) as distributed:
                    results[f"{kind} {micro_batches}"] = count_collectives(config, distributed)
                    groups = (*distributed.mesh.get_all_groups(), dist.group.WORLD)
                    results["timeouts"] = sorted({timeout_seconds(group) for group in groups})
        results["waiting"] = waiting_seconds(layout_config("ddp", 1), shared)
        dist.barrier()
        if shared.rank == 0:
            Path(sys.argv[1]).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
