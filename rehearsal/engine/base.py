"""Engine: the interface through which a rehearsal deploys and destroys the Pulumi program."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.teardown import DestroyResult
from rehearsal.aws.journal import JournalEntry
from trainyard.errors import InputError
from trainyard.models.report import NotRehearsed, Substitution

# Cases of the engine that change a stack which exists; a rehearsal creates and destroys one.
UPDATES = "engine: second pulumi up, --target, replacement, refresh, import, cancel"


class Engine(Protocol):
    """Runs the program of one rehearsal in the rehearsal's account. The methods are called in this order."""

    def preview(self) -> int:
        """Return how many AWS resources an `up` would create.

        Raises InputError for invalid settings that only the program's lookups detect.
        """

    def up(self, on_start: Callable[[Deployment], None]) -> Deployment:
        """Create the resources. `on_start` receives the deployment, still empty, before the program starts.

        Raises UpError when the program fails. Raises KeyboardInterrupt only after the operations in progress ended.
        """

    def stop(self) -> None:
        """Stop the local commands that are running, from any thread: `up` then fails."""

    def destroy(self, deployment: Deployment) -> DestroyResult:
        """Delete the resources that are not retained. It can be called again after a failure or an interrupt.

        Raises DestroyError when a resource remains.
        """

    def cli_environment(self) -> dict[str, str]:
        """Return the environment variables with which the Pulumi CLI works on the stack; empty without the CLI."""

    def read_changes(self, deployment: Deployment) -> None:
        """Update the deployment after the user has run the CLI on the stack of a kept rehearsal."""

    def check_calls(self, created: Mapping[str, str], journal: Iterable[JournalEntry]) -> list[str]:
        """Compare the created resources (URN -> name) with the API calls that created them. Return the differences."""

    def substitutions(self) -> list[Substitution]:
        """Return the parts of the real engine for which the rehearsal uses a substitute."""

    def not_rehearsed(self) -> list[NotRehearsed]:
        """Return the cases of the real engine that the rehearsal does not run."""


class ProgramInputError(InputError):
    """An InputError that the program raised in another process. Only its message is available, not its problems."""

    def __init__(self, message: str) -> None:
        ValueError.__init__(self, message)
        self.problems = []
