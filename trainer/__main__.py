"""`torchrun ... -m trainer --config FILE`, or alone: all that a user can get wrong is told before torch is imported."""

import argparse
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from contract.base import InputError
from contract.training import TrainerConfig
from trainer.settings import Environment, read_config


def _mistake_in(
    train: Callable[[TrainerConfig, Environment], None], config: TrainerConfig, environment: Environment
) -> InputError | None:
    try:
        train(config, environment)
    except InputError as error:
        return error
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="trainer", description="Train a byte-level transformer.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file of contract.training.TrainerConfig")
    arguments = parser.parse_args()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the stacks of a hung rank, on its stderr
    try:
        environment = Environment.read(os.environ)
        config = read_config(arguments.config, environment.world_size)

        from torch.distributed.elastic.multiprocessing.errors import record

        from trainer.loop import train

        # What only the job itself can tell (an absent bucket) is the user's to mend too: no traceback for torchrun.
        mistake = record(_mistake_in)(train, config, environment)
    except InputError as error:
        mistake = error
    if mistake:
        print(mistake, file=sys.stderr)
    return 2 if mistake else 0


if __name__ == "__main__":
    raise SystemExit(main())
