"""One emulated AWS for all tests of the adapter, and one deployment of each stack in it."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.adapter.account import Adapter
from rehearsal.adapter.graph import Deployment, Event
from rehearsal.adapter.mocks import up
from rehearsal.aws.process import EmulatedAws

ROOT = Path(__file__).parents[3]
PROGRAM = ("infra", "trainyard", "playbooks", "trainer", "stacks", "constraints.txt", "Pulumi.yaml")
# In place of trainyard's own: tells what it was asked, and answers as the launch does.
LAUNCHER = """\
#!/bin/sh
echo "launcher: $* in $AWS_REGION" >&2
echo "$*" >> calls
echo '{"run": "r-1"}'
"""


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    with EmulatedAws.start(tmp_path_factory.mktemp("aws")) as running, pytest.MonkeyPatch.context() as patch:
        for key, value in running.environment().items():
            patch.setenv(key, value)
        yield running


@pytest.fixture
def account(aws: EmulatedAws) -> Adapter:
    return Adapter(aws.region, run_commands=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the program whose launch command is a small script."""
    for name in PROGRAM:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    launcher = tmp_path / "trainyard" / "launcher"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    return tmp_path


class Deploy:
    """Runs a stack file of this tree against an account, and remembers the events."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root = root
        self.events: list[Event] = []

    def __call__(self, stack: str, account: Adapter, file: str | None = None) -> Deployment:
        path = self.root / "stacks" / f"Pulumi.{file or stack}.yaml"
        return up(path, stack, self.root, account=account, on_event=self.events.append)


@pytest.fixture(scope="session")
def local(aws: EmulatedAws) -> Deployment:
    """A stack that stands while the tests run: to look at, not to change."""
    return Deploy()("standing", Adapter(aws.region, run_commands=False), "local")


@pytest.fixture
def deploy() -> Deploy:
    return Deploy()
