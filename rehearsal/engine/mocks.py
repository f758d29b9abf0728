"""The SDK's mocks as engine, without the Pulumi CLI: the adapter creates and deletes the resources."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.adapter.teardown import DestroyResult, destroy
from rehearsal.audit import check_journal
from rehearsal.aws.journal import JournalEntry
from rehearsal.context import Context
from rehearsal.engine.base import UPDATES
from trainyard.config.project import PROJECT_ROOT
from trainyard.models.report import NotRehearsed, Substitution


class MocksEngine:
    """Runs the program with the Pulumi SDK's mocks."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._account = EmulatedAccount(context.aws.region)

    def preview(self) -> int:
        """Return how many AWS resources an `up` would create. Raises InputError when the program raises it."""
        context = self._context
        planned = up(
            context.config,
            context.options.stack,
            PROJECT_ROOT,
            preview=True,
            account=self._account,
            program=context.options.project.program,
            project=context.options.project.name,
        )
        resources = planned.resources.values()
        return len([resource for resource in resources if resource.custom and resource.type.startswith("aws:")])

    def up(self, on_start: Callable[[Deployment], None]) -> Deployment:
        """Create the resources. Raises UpError when the program fails."""
        context = self._context
        return up(
            context.config,
            context.options.stack,
            PROJECT_ROOT,
            account=self._account,
            program=context.options.project.program,
            project=context.options.project.name,
            on_event=context.print_event,
            on_start=on_start,
        )

    def stop(self) -> None:
        """Stop the local commands that are running: `up` then fails."""
        self._account.stop()

    def destroy(self, deployment: Deployment) -> DestroyResult:
        """Delete the resources that are not retained. Raises DestroyError when a resource remains."""
        return destroy(deployment, on_event=self._context.print_event)

    def cli_environment(self) -> dict[str, str]:
        """Return nothing: the mocks have no CLI."""
        return {}

    def read_changes(self, deployment: Deployment) -> None:
        """Do nothing: only this process changes the deployment."""

    def check_calls(self, created: Mapping[str, str], journal: Iterable[JournalEntry]) -> list[str]:
        """Compare the created resources with the API calls in the journal."""
        return check_journal(created, journal, self._context.aws.secrets.adapter.id)

    def substitutions(self) -> list[Substitution]:
        """Return nothing: the report already names the engine."""
        return []

    def not_rehearsed(self) -> list[NotRehearsed]:
        """Return the cases of the real engine that the rehearsal does not run."""
        reason = "the SDK's mocks have no state; tests/rehearsal/engine runs these cases if the Pulumi CLI is on PATH"
        return [NotRehearsed(subject=UPDATES, reason=reason)]


@contextmanager
def mocks_engine(context: Context) -> Iterator[MocksEngine]:
    """Yield the engine. It needs no cleanup."""
    yield MocksEngine(context)
