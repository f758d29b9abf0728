"""What rooms share in their tests: one emulated account in which each test makes its own things."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import boto3
import pytest
from xdist.scheduler import LoadScopeScheduling

from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.nspawn.requirements import lacking
from trainyard.aws import s3 as objects
from trainyard.aws.s3 import Bucket

REGION = "us-east-1"
_numbers = count(1)


# Files of tests that take long, the longest first: the rest fills the gaps. Those that look at the main rehearsal share
# the process that has run it.
MAIN = ("test_side_by_side", "test_road", "test_audit")
LONG = (
    *MAIN,
    "test_interrupt",
    "test_verification",
    "test_gpu_stack",
    "test_killed",
    "test_lease",
    "test_bad_input",
    "test_run",
)


def browser() -> str | None:
    """A Chromium, where this machine has one."""
    return next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), None)


# Mark -> what this machine lacks for the tests that bear it; empty where it can run them.
LACKING: dict[str, Callable[[], str]] = {
    "browser": lambda: "" if browser() else "no chromium (apt-get install chromium)",
    "booted": lambda: "; ".join(f"{one.why} ({one.fix})" for one in lacking()),
}


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that need what this machine lacks: in CI they run, and fail; elsewhere they are left out, which is said."""
    if os.environ.get("CI") == "true":
        return
    for mark, told in LACKING.items():
        found = [item for item in items if item.get_closest_marker(mark)]
        if found and (why := told()):
            items[:] = [item for item in items if item not in found]
            config.hook.pytest_deselected(items=found)
            if reporter := config.pluginmanager.get_plugin("terminalreporter"):
                reporter.write_line(f"{len(found)} tests left out: {why}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_out(config, items)
    items.sort(key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


class Files(LoadScopeScheduling):  # type: ignore[misc]
    """A file's tests run in one process, in their order."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return "main" if Path(file).stem in MAIN else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return Files(config, log)


@pytest.fixture(scope="session")
def running_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    with EmulatedAws.start(tmp_path_factory.mktemp("account"), region=REGION) as running:
        yield running


@pytest.fixture(scope="module")
def account(running_account: EmulatedAws) -> Iterator[EmulatedAws]:
    """An emulated AWS, found by the environment as everything of ours finds it; other rooms have their own."""
    with found(running_account):
        yield running_account


@pytest.fixture(scope="module")
def own_account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmulatedAws]:
    """One that no other file's tests use: for a hypervisor, which boots every instance that bears no other's tag."""
    with EmulatedAws.start(tmp_path_factory.mktemp("own-account"), region=REGION) as running, found(running):
        yield running


@contextmanager
def found(running: EmulatedAws) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in running.environment().items():
            patch.setenv(name, value)
        objects.client.cache_clear()
        yield
    objects.client.cache_clear()


@pytest.fixture
def bucket(account: EmulatedAws) -> Bucket:
    """An empty bucket."""
    name = f"bucket-{next(_numbers)}"
    boto3.client("s3", region_name=REGION).create_bucket(Bucket=name)
    return Bucket(name, REGION)
