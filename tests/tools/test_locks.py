"""The locks match their inputs and one another, and a difference is reported."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.locks import LOCKS, ROOT, WHEELS, find_problems, read_hashes, read_requirements


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy inputs, locks and wheels."""
    inputs = {name for names in LOCKS.values() for name in names} | {"trainer/prepare/requirements.in"}
    for name in (*LOCKS, *inputs):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / WHEELS, tmp_path / WHEELS)
    return tmp_path


def edit(file: Path, change: Callable[[str], str]) -> None:
    before = file.read_text()
    file.write_text(change(before))
    assert file.read_text() != before


def test_locks_are_up_to_date() -> None:
    assert find_problems() == [], "run make locks"


def test_a_changed_pin_is_reported(copy: Path) -> None:
    edit(copy / "infra/requirements.in", lambda text: text.replace("rich==15.0.0", "rich==15.0.1"))
    assert "infra/requirements.txt has rich 15.0.0, required is rich==15.0.1" in find_problems(copy)


def test_a_removed_package_is_reported(copy: Path) -> None:
    edit(copy / "infra/requirements.in", lambda text: text.replace("rich==15.0.0", "#"))
    assert "infra/requirements.txt does not match infra/requirements.in" in find_problems(copy)


def test_a_changed_comment_needs_no_new_lock(copy: Path) -> None:
    edit(copy / "infra/requirements.in", lambda text: text + "# another comment\n")
    assert find_problems(copy) == []


def test_a_package_without_a_hash_is_reported(copy: Path) -> None:
    edit(copy / "trainyard/node/requirements.txt", lambda text: text + "absent==1.0\n")
    problems = find_problems(copy)
    assert "trainyard/node/requirements.txt has no hash of absent" in problems
    assert "trainyard/node/requirements.txt has absent 1.0, but requirements.txt has none" in problems


def test_a_changed_wheel_of_the_project_is_reported(copy: Path) -> None:
    (wheel,) = (copy / WHEELS).glob("*.whl")
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    assert find_problems(copy) == [f"requirements.txt does not have the hash of {WHEELS}/{wheel.name}"]


def test_every_wheel_of_the_project_has_a_source_with_a_hash() -> None:
    built = {tuple(wheel.name.split("-")[:2]) for wheel in (ROOT / WHEELS).glob("*.whl")}
    sources = ROOT / WHEELS / "sources.txt"
    assert {(each.name, str(each.specifier).removeprefix("==")) for each in read_requirements(sources)} == built
    assert all(read_hashes(sources).values())


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_permits_wheels_only(lock: str) -> None:
    assert "--only-binary :all:" in (ROOT / lock).read_text().splitlines()


def test_the_lock_has_the_packages_that_pulumi_install_upgrades() -> None:
    """The Makefile limits pip to these versions, so that `pulumi install` installs nothing without a hash."""
    assert read_hashes(ROOT / "infra/requirements.txt").keys() >= {"pip", "setuptools", "wheel"}
