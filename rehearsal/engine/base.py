"""What a rehearsal asks of an engine: the way up, the way down, and what can be told of its calls."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.teardown import Destroyed
from rehearsal.aws.journal import JournalEntry
from trainyard.base import InputError
from trainyard.models.report import Scaled


class Engine(Protocol):
    """Runs the program of one rehearsal, in its own account. Used in the order of its methods."""

    def preview(self) -> int:
        """How many AWS resources an `up` would make.

        Raises InputError for what only the program's look-ups can tell.
        """

    def up(self, begun: Callable[[Deployment], None]) -> Deployment:
        """Make them. `begun` receives what stands of the program before anything does.

        Raises UpFailed, and lets a KeyboardInterrupt through once nothing more is being made.
        """

    def stop(self) -> None:
        """End the commands that run, from any thread: the way up then fails."""

    def destroy(self, deployment: Deployment) -> Destroyed:
        """Delete what is not retained; again after a failure or a cut. Raises DestroyFailed when anything is left."""

    def check_calls(self, made: Mapping[str, str], journal: Iterable[JournalEntry]) -> list[str]:
        """Resources made (urn -> name) against the calls that made them: a sentence for each that does not fit."""

    def scaled(self) -> list[Scaled]:
        """What of the real engine something else stood in for."""


class ProgramRefused(InputError):
    """An InputError of the program, which another process raised: its words alone came here."""

    def __init__(self, words: str) -> None:
        ValueError.__init__(self, words)
        self.problems = []
