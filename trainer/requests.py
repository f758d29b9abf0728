"""What is asked of the job from outside while it runs: a checkpoint now, or its end."""

import signal
from types import FrameType

import torch
from torch import Tensor

from trainer.settings import Environment

ENDING = (signal.SIGTERM, signal.SIGINT)  # what asks a job for its end


class Requests:
    """Each rank looks for itself, at every step, and the loop tells the others.

    SIGTERM, which torchrun passes on to its workers, and Ctrl-C ask for a checkpoint and the end. The file
    CHECKPOINT_REQUEST asks for a checkpoint; its removal is the answer.
    """

    def __init__(self, environment: Environment) -> None:
        self._file = environment.checkpoint_request
        self._terminated = False
        self._answer: str | None = None
        for number in ENDING:
            signal.signal(number, self._terminate)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._terminated = True

    @property
    def ended(self) -> bool:
        """Whether the end is asked for here."""
        return self._terminated

    def now(self, device: torch.device) -> Tensor:
        """(2,): whether a checkpoint, and whether the end is asked for here: 1 or 0, to be summed over ranks."""
        asked = self._terminated or (self._answer is None and self._file.exists())  # once is enough
        return torch.tensor([float(asked), float(self._terminated)], device=device)

    def answered_by(self, uri: str, *, asked: bool) -> None:
        """The checkpoint that is begun at `uri` is also what was asked for."""
        if asked:
            self._answer = uri

    def saved(self, uri: str) -> None:
        """It is there: the asker hears of it."""
        if uri == self._answer:
            self._file.unlink(missing_ok=True)
            self._answer = None
