"""One emulated AWS for all adapter tests, and a deployment of the local stack in it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.deployment import Deployment, Event
from rehearsal.adapter.mocks import up
from rehearsal.aws.process import EmulatedAws
from tests.conftest import aws_environment
from tools.stack_files import read_stack_file
from trainyard.config.project import NAME

ROOT = Path(__file__).parents[3]
PROGRAM = ("infra", "trainyard", "playbooks", "trainer", "stacks", "Pulumi.yaml")
# Replaces trainyard's launcher: logs its arguments, and prints a result as the launch does.
LAUNCHER = """\
#!/bin/sh
echo "launcher: $* in $AWS_REGION" >&2
echo "$*" >> ../calls
echo '{"run": "r-1"}'
"""


@contextmanager
def start_account(folder: Path) -> Iterator[EmulatedAws]:
    """Start an emulated AWS, to which the environment directs AWS clients."""
    with EmulatedAws.start(folder) as running, aws_environment(running):
        yield running


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    with start_account(tmp_path_factory.mktemp("aws")) as running:
        yield running


@pytest.fixture
def account(aws: EmulatedAws) -> EmulatedAccount:
    return EmulatedAccount(aws.region, run_commands=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the program whose launch command is a small script."""
    for name in PROGRAM:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path / name)
    launcher = tmp_path / "infra" / "launcher"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    return tmp_path


class Deploy:
    """Deploys a stack file of a source tree to an account, and records the events."""

    def __init__(self, root: Path = ROOT, project: str = NAME) -> None:
        self.root, self.project = root, project
        self.events: list[Event] = []

    def __call__(self, stack: str, account: EmulatedAccount, file: str | None = None) -> Deployment:
        config = read_stack_file(file or stack, self.root)
        return up(config, stack, self.root, account=account, on_event=self.events.append, project=self.project)


@pytest.fixture(scope="session")
def local(aws: EmulatedAws) -> Deployment:
    """A deployed stack that tests read but do not change."""
    return Deploy()("shared", EmulatedAccount(aws.region, run_commands=False), "local")


@pytest.fixture
def deploy() -> Deploy:
    return Deploy()
