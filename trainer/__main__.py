"""`torchrun ... -m trainer --config FILE`, or alone: all that a user can get wrong is told before torch is imported."""

import argparse
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from trainer.settings import Environment, read_config
from trainyard.base import InputError
from trainyard.config.training import TrainerConfig


def _ended(
    train: Callable[[TrainerConfig, Environment], None], config: TrainerConfig, environment: Environment
) -> tuple[int, Exception | None]:
    """Exit status, and what to say where no traceback helps."""
    from trainer.data import DataError
    from trainer.failures.memory import OutOfMemory
    from trainer.failures.peers import PeerLost

    try:
        train(config, environment)
    except InputError as error:
        return 2, error
    except (OutOfMemory, PeerLost, DataError, FloatingPointError, OSError) as error:
        return 1, error
    return 0, None


def main() -> int:
    parser = argparse.ArgumentParser(prog="trainer", description="Train a model, alone or under torchrun.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file of a TrainerConfig")
    arguments = parser.parse_args()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the stacks of a hung rank, on its stderr
    try:
        environment = Environment.read(os.environ)
        config = read_config(arguments.config, environment.world_size, environment.local_world_size)

        from torch.distributed.elastic.multiprocessing.errors import record

        from trainer.loop import train

        # What only the job itself can tell (an absent bucket) is the user's to mend too: no traceback for torchrun.
        status, told = record(_ended)(train, config, environment) or (0, None)
    except InputError as error:
        status, told = 2, error
    if told:
        print(told, file=sys.stderr)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
