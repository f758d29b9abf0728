"""Run the training job: `torchrun ... -m trainer --config FILE`, or without torchrun as a single process.

`python -m trainer plan FILE --ranks N` calculates its memory and communication instead, and `python -m trainer evaluate
MODEL DATA` evaluates an exported model.

With `recovery: in_process` trainer.recovery.supervisor takes the place of torchrun.

The environment and the configuration are validated before torch is imported.
"""

import argparse
import faulthandler
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from trainer.settings import Environment, load_config
from trainyard.config.training import TrainerConfig
from trainyard.errors import InputError
from trainyard.log import configure_logging


def _run(
    train: Callable[[TrainerConfig, Environment], None], config: TrainerConfig, environment: Environment
) -> tuple[int, Exception | None]:
    """Run the job. Returns the exit status, and the error to print without a traceback."""
    from trainer.data import DataError
    from trainer.failures.out_of_memory import OutOfMemoryError
    from trainer.failures.peer_loss import PeerLostError
    from trainer.recovery.agreement import RecoveryError

    try:
        train(config, environment)
    except InputError as error:
        return 2, error
    except (OutOfMemoryError, PeerLostError, RecoveryError, DataError, FloatingPointError, OSError) as error:
        return 1, error
    return 0, None


def _command(name: str) -> Callable[[list[str]], int]:
    if name == "plan":
        from trainer.plan.command import main as plan

        return plan
    from trainer.evaluate_model import main as evaluate

    return evaluate


def main() -> int:
    """Run the program. Returns 0 on success, 1 if the job fails and 2 for a user error."""
    if sys.argv[1:2] in (["plan"], ["evaluate"]):
        try:
            return _command(sys.argv[1])(sys.argv[2:])
        except InputError as input_error:
            print(input_error, file=sys.stderr)
            return 2
    parser = argparse.ArgumentParser(prog="trainer", description="Train a model, standalone or under torchrun.")
    parser.add_argument("--config", type=Path, required=True, help="JSON file of a TrainerConfig")
    arguments = parser.parse_args()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # prints the stacks of a hung rank on its stderr
    names = {"run": "TRAINYARD_RUN", "node": "TRAINYARD_NODE", "rank": "RANK"}
    configure_logging("trainer", sys.stdout, **{field: os.environ.get(name, "") for field, name in names.items()})
    try:
        environment = Environment.read(os.environ)
        config = load_config(arguments.config, environment.world_size, environment.local_world_size)

        # The GPU allocator's segments grow, so that changing sizes leave no gaps. Read when CUDA is initialized.
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
        from torch.distributed.elastic.multiprocessing.errors import record

        from trainer.loop import train

        # A user error that only the job detects (a missing bucket) must not be recorded for torchrun with a traceback.
        status, error = record(_run)(train, config, environment) or (0, None)
    except InputError as input_error:
        status, error = 2, input_error
    if error:
        # Without the log prefix: the node's agent takes a rank's last stderr line as its failure message
        # (trainyard/node/agent/rank_failures.py), and the controller compares it with that of the next attempt.
        print(error, file=sys.stderr)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
