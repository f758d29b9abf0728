"""The engine without the Pulumi CLI: the SDK's own mocks run the program, the adapter makes and deletes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from rehearsal.adapter.account import Adapter
from rehearsal.adapter.graph import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.adapter.session import ACCESS_KEY
from rehearsal.adapter.teardown import Destroyed, destroy
from rehearsal.audit import check_journal
from rehearsal.aws.journal import JournalEntry
from rehearsal.context import Scene
from trainyard.models.report import Scaled


class Mocks:
    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._account = Adapter(scene.aws.region)

    def preview(self) -> int:
        scene = self._scene
        planned = up(scene.config, scene.options.stack, scene.options.root, preview=True, account=self._account)
        return len([one for one in planned.resources.values() if one.custom and one.type.startswith("aws:")])

    def up(self, begun: Callable[[Deployment], None]) -> Deployment:
        scene = self._scene
        return up(
            scene.config,
            scene.options.stack,
            scene.options.root,
            account=self._account,
            on_event=scene.tell,
            begun=begun,
        )

    def stop(self) -> None:
        self._account.stop()

    def destroy(self, deployment: Deployment) -> Destroyed:
        return destroy(deployment, on_event=self._scene.tell)

    def check_calls(self, made: Mapping[str, str], journal: Iterable[JournalEntry]) -> list[str]:
        return check_journal(made, journal, ACCESS_KEY)

    def scaled(self) -> list[Scaled]:
        return []


@contextmanager
def mocks(scene: Scene) -> Iterator[Mocks]:
    yield Mocks(scene)
