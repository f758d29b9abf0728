"""The role `base` on a booted machine."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import ROOT, Booted, booted
from tests.polling import eventually

pytestmark = pytest.mark.booted
AWAY_SECONDS = 12.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("base")) as made:
        yield made


def test_it_converges_and_a_second_run_changes_nothing(node: Booted) -> None:
    first = node.role("base", base_container=True)
    assert first.code == 0, first.told
    assert "base : Write limits, kernel settings, and what apt shall bear" in first.changed
    again = node.role("base", base_container=True)
    assert (again.code, again.changed) == (0, ()), again.told


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[tuple[Booted, Repository]]:
    """A machine whose image brings no chrony, and the source that has one."""
    with booted(tmp_path / "node", NO_SOURCES) as made, repository(tmp_path / "packages", made.network) as source:
        source.add(Package(name="chrony", version="9.9"))
        source.be_source_of(made)
        made.sh("dpkg --purge chrony")
        yield made, source


HOLD = "import fcntl, time; lock = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(lock, fcntl.LOCK_EX)"
CLOCK = "base : Have the clock kept"


def test_a_lock_that_another_holds_is_waited_for(bare: tuple[Booted, Repository]) -> None:
    node, _ = bare
    node.sh(f'systemd-run -q python3 -c "{HOLD}; print(1, flush=True); time.sleep({AWAY_SECONDS})"')
    eventually(lambda: "lock-frontend" in node.sh("lslocks -n -u || true"), "the lock's holder")
    play = node.role("base", base_container=True)
    assert (play.code, CLOCK in play.changed) == (0, True), play.told


def test_a_registry_that_is_away_is_asked_again(bare: tuple[Booted, Repository]) -> None:
    node, source = bare
    source.away()
    back = threading.Timer(AWAY_SECONDS, source.back)
    back.start()
    play = node.role("base", base_container=True)
    back.join()
    assert (play.code, CLOCK in play.changed) == (0, True), play.told


def test_a_setting_that_is_not_in_force_is_told(node: Booted) -> None:
    node.sh("sysctl -q -w net.core.somaxconn=77; systemctl stop chrony")
    told = node.machine.run("/bin/sh", f"{ROOT}/playbooks/roles/base/files/verify.sh", "machine")
    assert "net.core.somaxconn is 77, not 4096" in told.stderr
    assert "chrony, which keeps the clock, is inactive" in told.stderr
