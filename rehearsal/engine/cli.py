"""The Pulumi CLI as engine: the CLI keeps the state, and uses the adapter as its resource provider."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.mocks import UpError
from rehearsal.adapter.provider import Provider, serve_provider
from rehearsal.adapter.teardown import DestroyError, DestroyResult
from rehearsal.audit import check_journal
from rehearsal.aws.journal import JournalEntry
from rehearsal.context import Context
from rehearsal.engine.base import UPDATES, ProgramInputError
from rehearsal.engine.log import CRASHED, EngineLog
from rehearsal.engine.state import read_exports, read_resources
from rehearsal.engine.workspace import Workspace
from trainyard.errors import InputError, Problem
from trainyard.models.report import EngineName, NotRehearsed, Substitution

REQUIRED_PROGRAMS = ("pulumi", "pulumi-language-python")


def check_cli(engine: EngineName = "pulumi") -> None:
    """Raise InputError when the Pulumi CLI is not installed."""
    missing = [name for name in REQUIRED_PROGRAMS if shutil.which(name) is None]
    if missing:
        reason = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on PATH"
        fix = "Install the Pulumi CLI (pulumi.com/docs/install), or omit --engine (make: ENGINE)"
        raise InputError([Problem("--engine", engine, reason, fix, "program_not_on_path")])


def has_plugin(package: str) -> bool:
    """Return whether Pulumi finds a plugin of this package, on PATH or among its installed plugins."""
    program = f"pulumi-resource-{package}"
    home = Path(os.environ.get("PULUMI_HOME", Path.home() / ".pulumi"))
    return shutil.which(program) is not None or any(home.glob(f"plugins/resource-{package}-v*/{program}"))


@contextmanager
def attached_providers(context: Context, *packages: str) -> Iterator[dict[str, int]]:
    """Serve the rehearsal's provider for `packages`, and for `command` when Pulumi has no plugin of it.

    Yields the port of each package's provider. The providers stop at exit.
    """
    provider = Provider(context.options.project.program, context.aws.region)
    missing = [name for name in ("command",) if not has_plugin(name)]
    with ExitStack() as stack:
        yield {name: stack.enter_context(serve_provider(provider)) for name in (*packages, *missing)}


@contextmanager
def cli_engine(context: Context) -> Iterator["CliEngine"]:
    """Yield the engine while its providers run."""
    with attached_providers(context, "aws") as ports:
        yield CliEngine(context, ports)


class CliEngine:
    """Runs the program with the Pulumi CLI.

    `ports`: package -> port of each provider that the rehearsal serves. `extra_config`: stack settings in addition to
    the stack file's.
    """

    def __init__(
        self, context: Context, ports: Mapping[str, int], extra_config: Mapping[str, Any] | None = None
    ) -> None:
        self._context = context
        self._ports = ports
        self._config = {**context.config, **(extra_config or {})}
        options = context.options
        self._workspace = Workspace(options.folder / "pulumi", options.project, options.stack, ports)

    def preview(self) -> int:
        """Return how many AWS resources an `up` would create. Raises InputError when the program raises it."""
        self._workspace.create(self._config)
        log = self._workspace.run("preview")
        if any(urn or message.startswith(CRASHED) for urn, message in log.errors):
            raise RuntimeError(_messages(log))
        if log.errors:
            raise ProgramInputError(_messages(log))
        return len([type_ for type_ in log.planned.values() if type_.startswith("aws:")])

    def up(self, on_start: Callable[[Deployment], None]) -> Deployment:
        """Create the resources, and read the deployment from the CLI's state. Raises UpError."""
        options, account = self._context.options, EmulatedAccount(self._context.aws.region)
        project = options.project
        deployment = Deployment(
            project=project.name, stack=options.stack, program=project.program, account=account, preview=False
        )
        on_start(deployment)
        seconds: dict[str, float] = {}
        try:
            log = self._workspace.run("up", "--yes", "--skip-preview", on_event=self._context.print_event)
            seconds = log.seconds
        finally:
            state = self._workspace.export_state()
            deployment.resources.update(read_resources(state, seconds))
            deployment.exports.update(read_exports(state))
        if log.errors:
            raise UpError(_messages(log), deployment)
        return deployment

    def stop(self) -> None:
        """Interrupt the CLI: its operations in progress end, and its local commands stop."""
        self._workspace.interrupt()

    def destroy(self, deployment: Deployment) -> DestroyResult:
        """Delete the resources that are not retained. Raises DestroyError when a resource remains."""
        log = self._workspace.run("destroy", "--yes", "--skip-preview", on_event=self._context.print_event)
        in_state = read_resources(self._workspace.export_state(), {})
        resources = [resource for resource in deployment.resources.values() if resource.custom]
        if log.errors or in_state:
            remaining = [
                resource for resource in resources if resource.urn in in_state and not resource.retain_on_delete
            ]
            raise DestroyError(dict(log.errors), remaining)
        for resource in resources:
            if not resource.retain_on_delete:
                resource.exists, resource.deleted = False, True
        return DestroyResult(
            deleted=tuple(resource for resource in resources if resource.deleted),
            retained=tuple(resource for resource in resources if resource.exists),
        )

    def cli_environment(self) -> dict[str, str]:
        """Return the environment variables with which the CLI works on the stack in its folder."""
        return self._workspace.variables()

    def read_changes(self, deployment: Deployment) -> None:
        """Read the state again. A resource that is no longer in it was deleted, unless it is retained."""
        self._workspace.wait_until_unlocked(partial(self._context.display.print_line, "kept"))
        state = self._workspace.export_state()
        in_state = read_resources(state, {})
        for urn, resource in deployment.resources.items():
            if urn not in in_state and not resource.retain_on_delete:
                resource.exists, resource.deleted = False, True
        deployment.resources.update(in_state)
        deployment.exports.update(read_exports(state))

    def check_calls(self, created: Mapping[str, str], journal: Iterable[JournalEntry]) -> list[str]:
        """Compare the created resources with the API calls in the journal."""
        return check_journal(created, journal, self._context.aws.secrets.adapter.id)

    def substitutions(self) -> list[Substitution]:
        """Return the Pulumi plugins that the rehearsal's provider replaces."""
        reasons = {
            "aws": "the plugin's own AWS client does not mark its calls with the resource that they are for",
            "command": "it is not on PATH and not among Pulumi's installed plugins",
        }
        return [
            Substitution(
                original=f"the plugin pulumi-resource-{name}",
                replacement="the rehearsal's own provider",
                reason=reasons[name],
            )
            for name in self._ports
        ]

    def not_rehearsed(self) -> list[NotRehearsed]:
        """Return the cases of the real engine that the rehearsal does not run."""
        reason = "a rehearsal creates a stack and destroys it; tests/rehearsal/engine runs these cases"
        return [NotRehearsed(subject=UPDATES, reason=reason)]


def _messages(log: EngineLog) -> str:
    return "\n".join(message for _, message in log.errors)
