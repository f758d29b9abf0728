"""A process that has imported the trainer and waits to become a rank: `python -m trainer.recovery.standby ARGUMENTS`.

The supervisor writes one line to its standard input: the Assignment. The process then runs the trainer with ARGUMENTS.
Without a line, the supervisor has ended.
"""

import os
import sys
from pathlib import Path

from trainer.imports import import_rank_modules
from trainyard.base import StrictModel


class Assignment(StrictModel):
    """The rank that a waiting process becomes."""

    variables: dict[str, str]
    logs: Path  # the folder of the rank's stdout.log and stderr.log


def redirect_output(logs: Path) -> None:
    """Append this process's output to the rank's logs."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        file = os.open(logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, descriptor)
        os.close(file)


def main() -> int:
    """Wait for the assignment, then run the trainer. Returns its exit status."""
    import_rank_modules()
    from trainer.__main__ import main as run_trainer

    line = sys.stdin.readline()
    if not line:
        return 0
    assignment = Assignment.model_validate_json(line)
    os.environ.update(assignment.variables)
    redirect_output(assignment.logs)
    return run_trainer()


if __name__ == "__main__":
    raise SystemExit(main())
