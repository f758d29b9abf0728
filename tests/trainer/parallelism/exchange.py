"""`torchrun -m tests.trainer.parallelism.exchange FILE`: what two ranks exchange in a step, as JSON in FILE.

Of each layout the number of collectives of each kind, in a step of one micro-batch and in one of three; and the groups'
timeouts in seconds.
"""

import json
import os
import sys
from collections import Counter
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.trainer.conftest import TINY
from trainer.failures import flight
from trainer.models import build
from trainer.parallelism import passes_of, spread
from trainer.precision import Precision
from trainer.ranks import Ranks, join
from trainer.settings import Environment
from trainer.telemetry.timing import Clock
from trainyard.config.training import TrainerConfig

CPU = torch.device("cpu")
RANKS = 2
TIMEOUT = 40


def exchanged(config: TrainerConfig, ranks: Ranks) -> dict[str, int]:
    precision = Precision(config, CPU)
    module = spread(build(config), config, ranks, precision)
    passes = passes_of(module, config, ranks, precision)
    tokens = torch.randint(0, 256, (2, 33))
    batches = repeat((tokens[:, :-1], tokens[:, 1:]))
    passes.warm_up(next(batches))
    passes.gradients(batches, Clock(CPU))
    begun = max(each["time_created_ns"] for each in flight.entries())
    passes.gradients(batches, Clock(CPU))
    return Counter(each["profiling_name"] for each in flight.entries() if each["time_created_ns"] > begun)


def seconds(group: Any) -> float:
    found: float = group._get_backend(CPU).options._timeout.total_seconds()
    return found


def configured(kind: str, micro_batches: int) -> TrainerConfig:
    parallel = {"data": kind} | ({"shard": 1} if kind == "hsdp" else {})
    batch = {"batch_size": 2 * RANKS * micro_batches, "timeout_seconds": TIMEOUT}
    return TrainerConfig.model_validate(TINY | batch | {"parallel": parallel})


def main() -> None:
    places = {"CHECKPOINT_URI": "/none", "RESULTS_URI": "/none", "DATA_URI": "/none"}
    environment = Environment.read(os.environ | places)
    found: dict[str, Any] = {}
    with join(configured("ddp", 1), environment, CPU) as alike:  # one group for all: a store's keys serve once
        for kind in ("ddp", "fsdp", "hsdp"):
            for micro_batches in (1, 3):
                config = configured(kind, micro_batches)
                with join(config, environment, CPU) as ranks:
                    found[f"{kind} {micro_batches}"] = exchanged(config, ranks)
                    groups = (*ranks.mesh.get_all_groups(), ranks.sharers, dist.group.WORLD)
                    found["timeouts"] = sorted({seconds(group) for group in groups})
        dist.barrier()
        if alike.rank == 0:
            Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
