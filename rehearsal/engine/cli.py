"""The engine with the Pulumi CLI: its own state, differences and order, with the adapter attached as its provider."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rehearsal.adapter.account import Adapter
from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.mocks import UpFailed
from rehearsal.adapter.provider import Provider, serving
from rehearsal.adapter.session import ACCESS_KEY
from rehearsal.adapter.teardown import Destroyed, DestroyFailed
from rehearsal.audit import check_journal
from rehearsal.aws.journal import JournalEntry
from rehearsal.context import Scene
from rehearsal.engine.base import ProgramRefused
from rehearsal.engine.log import CRASHED, EngineLog
from rehearsal.engine.state import exports_of, resources_of
from rehearsal.engine.workspace import Workspace
from trainyard.base import InputError, Problem
from trainyard.models.report import EngineName, Scaled

NEEDED = ("pulumi", "pulumi-language-python")


def check_cli(engine: EngineName = "pulumi") -> None:
    """Raises InputError where the Pulumi CLI can't be had."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        why = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on PATH"
        fix = "Install the Pulumi CLI (pulumi.com/docs/install), or leave ENGINE out"
        raise InputError([Problem(key="--engine", value=engine, why=why, fix=fix)])


def has_plugin(package: str) -> bool:
    """Whether Pulumi finds a plugin of this package: on PATH, or among those that it has fetched."""
    program = f"pulumi-resource-{package}"
    home = Path(os.environ.get("PULUMI_HOME", Path.home() / ".pulumi"))
    return shutil.which(program) is not None or any(home.glob(f"plugins/resource-{package}-v*/{program}"))


@contextmanager
def attaching(scene: Scene, *packages: str) -> Iterator[dict[str, int]]:
    """Package -> port of the rehearsal's own provider: of these, and of `command` where Pulumi has no plugin of it.

    They answer as long as this lasts.
    """
    provider = Provider(scene.options.root, scene.aws.region)
    lacking = [name for name in ("command",) if not has_plugin(name)]
    with ExitStack() as stack:
        yield {name: stack.enter_context(serving(provider)) for name in (*packages, *lacking)}


@contextmanager
def cli(scene: Scene) -> Iterator["Cli"]:
    """Its providers answer as long as this lasts."""
    with attaching(scene, "aws") as attached:
        yield Cli(scene, attached)


class Cli:
    """`attached`: package -> port, of the providers that the rehearsal serves itself. `beside`: settings of its own."""

    def __init__(self, scene: Scene, attached: Mapping[str, int], beside: Mapping[str, Any] | None = None) -> None:
        self._scene = scene
        self._attached = attached
        self._config = {**scene.config, **(beside or {})}
        options = scene.options
        self._workspace = Workspace(options.folder / "pulumi", options.root, options.stack, attached)

    def preview(self) -> int:
        self._workspace.lay_out(self._config)
        log = self._workspace.run("preview")
        if any(urn or message.startswith(CRASHED) for urn, message in log.errors):
            raise RuntimeError(_words(log))
        if log.errors:
            raise ProgramRefused(_words(log))
        return len([type_ for type_ in log.planned.values() if type_.startswith("aws:")])

    def up(self, begun: Callable[[Deployment], None]) -> Deployment:
        options, account = self._scene.options, Adapter(self._scene.aws.region)
        deployment = Deployment(stack=options.stack, root=options.root, account=account, preview=False)
        begun(deployment)
        seconds: dict[str, float] = {}
        try:
            log = self._workspace.run("up", "--yes", "--skip-preview", tell=self._scene.tell)
            seconds = log.seconds
        finally:
            state = self._workspace.state()
            deployment.resources.update(resources_of(state, seconds))
            deployment.exports.update(exports_of(state))
        if log.errors:
            raise UpFailed(_words(log), deployment)
        return deployment

    def stop(self) -> None:
        self._workspace.interrupt()

    def destroy(self, deployment: Deployment) -> Destroyed:
        log = self._workspace.run("destroy", "--yes", "--skip-preview", tell=self._scene.tell)
        standing = resources_of(self._workspace.state(), {})
        own = [one for one in deployment.resources.values() if one.custom]
        if log.errors or standing:
            left = [one for one in own if one.urn in standing and not one.retain_on_delete]
            raise DestroyFailed(dict(log.errors), left)
        for one in own:
            if not one.retain_on_delete:
                one.made, one.deleted = False, True
        return Destroyed(
            deleted=tuple(one for one in own if one.deleted), retained=tuple(one for one in own if one.made)
        )

    def check_calls(self, made: Mapping[str, str], journal: Iterable[JournalEntry]) -> list[str]:
        return check_journal(made, journal, ACCESS_KEY)

    def scaled(self) -> list[Scaled]:
        whys = {
            "aws": "its plugin calls AWS with its own client; a rehearsal tells which resource each call serves",
            "command": "it is neither on PATH nor among Pulumi's plugins",
        }
        by = "the rehearsal's own provider"
        return [Scaled(what=f"the plugin pulumi-resource-{name}", by=by, why=whys[name]) for name in self._attached]


def _words(log: EngineLog) -> str:
    return "\n".join(message for _, message in log.errors)
