"""Requests to a running job: checkpoint, or checkpoint and termination."""

import signal
from types import FrameType

from trainer.settings import Environment

TERMINATION_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class JobRequests:
    """Requests that this rank has received. At every step the loop combines those of all ranks.

    SIGTERM, which torchrun forwards to its workers, and Ctrl-C request a checkpoint and termination. The file
    CHECKPOINT_REQUEST requests a checkpoint; its removal confirms that the checkpoint is complete.
    """

    def __init__(self, environment: Environment) -> None:
        self._request_file = environment.checkpoint_request
        self._termination_requested = False
        self._requested_uri: str | None = None  # the checkpoint in progress that was requested
        for number in TERMINATION_SIGNALS:
            signal.signal(number, self._request_termination)

    def _request_termination(self, number: int, frame: FrameType | None) -> None:
        self._termination_requested = True

    @property
    def is_termination_requested(self) -> bool:
        """Whether this rank has received a termination signal."""
        return self._termination_requested

    @property
    def is_save_requested(self) -> bool:
        """Whether this rank has received a request for a checkpoint that is not in progress."""
        return self._termination_requested or (self._requested_uri is None and self._request_file.exists())

    def checkpoint_started(self, uri: str, *, requested: bool) -> None:
        """Record that a save to `uri` has started, and whether it was requested."""
        if requested:
            self._requested_uri = uri

    def checkpoint_saved(self, uri: str) -> None:
        """Remove the request file if the checkpoint at `uri` was requested."""
        if uri == self._requested_uri:
            self._request_file.unlink(missing_ok=True)
            self._requested_uri = None

    def repeat_failed(self) -> None:
        """Let the request file count again if its checkpoint is not complete. Call it while no save is in progress."""
        self._requested_uri = None
