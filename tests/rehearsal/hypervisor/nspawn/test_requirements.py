"""What booted nodes need is said with what to install."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from rehearsal.hypervisor.nspawn import requirements as needs
from rehearsal.hypervisor.nspawn.requirements import lacking, lacking_for
from rehearsal.hypervisor.registry import usable_backend
from trainyard.base import InputError


@pytest.fixture(autouse=True)
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has it all."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "version_info", (3, 11, 2, "final", 0))


def test_a_machine_that_has_it_all_lacks_nothing() -> None:
    assert lacking() == []


def test_another_user_is_told_to_be_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="sudo make rehearsal BACKEND=nspawn"):
        usable_backend("nspawn")


def test_a_missing_program_is_told_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "systemd-nspawn" else "/usr/bin/x")
    (problem,) = lacking()
    assert (problem.value, problem.fix) == ("systemd-container", "Debian, Ubuntu: apt-get install systemd-container")


def test_an_environment_of_another_python_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    (problem,) = lacking()
    assert problem.value == "/usr, Python 3.12"


def test_more_nodes_than_the_kernel_lets_boot_are_refused_with_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "max_user_instances"
    limit.write_text("128\n")
    monkeypatch.setattr(needs, "INOTIFY_LIMIT", limit)
    assert lacking_for(8) == []
    (problem,) = lacking_for(9)
    assert (problem.value, problem.why) == ("128", "9 booted nodes hold up to 144 inotify instances")
    assert "sysctl -w fs.inotify.max_user_instances=1024" in problem.fix


def test_an_unknown_back_end_is_told() -> None:
    with pytest.raises(InputError, match="no such back-end"):
        usable_backend("qemu")
