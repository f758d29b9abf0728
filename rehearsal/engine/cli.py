"""The engine with the Pulumi CLI: its own state, differences and order, with the adapter attached as its provider."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from contract.base import InputError, Problem
from contract.report import Scaled
from rehearsal.adapter.account import Adapter
from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.mocks import UpFailed
from rehearsal.adapter.provider import Provider, serving
from rehearsal.adapter.teardown import Destroyed, DestroyFailed
from rehearsal.engine.base import ProgramRefused
from rehearsal.engine.log import CRASHED, EngineLog
from rehearsal.engine.state import exports_of, resources_of
from rehearsal.engine.workspace import Workspace
from rehearsal.scene import Scene

NEEDED = ("pulumi", "pulumi-language-python")
COMMAND_PLUGIN = "pulumi-resource-command"


def check_cli() -> None:
    """Raises InputError where the Pulumi CLI can't be had."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        why = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not on PATH"
        fix = "Install the Pulumi CLI (pulumi.com/docs/install), or leave ENGINE out"
        raise InputError([Problem(key="--engine", value="pulumi", why=why, fix=fix)])


@contextmanager
def cli(scene: Scene) -> Iterator["Cli"]:
    """Its providers answer as long as this lasts."""
    provider = Provider(scene.options.root, scene.aws.region)
    with ExitStack() as stack:
        attached = {"aws": stack.enter_context(serving(provider))}
        if not _has_command_plugin():
            attached["command"] = stack.enter_context(serving(provider))
        yield Cli(scene, attached)


def _has_command_plugin() -> bool:
    home = Path(os.environ.get("PULUMI_HOME", Path.home() / ".pulumi"))
    return shutil.which(COMMAND_PLUGIN) is not None or any(home.glob(f"plugins/resource-command-v*/{COMMAND_PLUGIN}"))


class Cli:
    """`attached`: package -> port, of the providers that the rehearsal serves itself."""

    def __init__(self, scene: Scene, attached: dict[str, int]) -> None:
        self._scene = scene
        self._attached = attached
        options = scene.options
        self._workspace = Workspace(options.folder / "pulumi", options.root, options.stack, attached)

    def preview(self) -> int:
        self._workspace.lay_out(self._scene.config)
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

    def scaled(self) -> list[Scaled]:
        by = "the rehearsal's own provider"
        why = "its plugin calls AWS with its own client; a rehearsal tells which resource each call serves"
        found = [Scaled(what="the plugin pulumi-resource-aws", by=by, why=why)]
        if "command" in self._attached:
            why = "it is neither on PATH nor among Pulumi's plugins"
            found.append(Scaled(what=f"the plugin {COMMAND_PLUGIN}", by=by, why=why))
        return found


def _words(log: EngineLog) -> str:
    return "\n".join(message for _, message in log.errors)
