"""Missing requirements of booted nodes are reported with the package or setting to change."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from rehearsal.hypervisor.nspawn import requirements
from rehearsal.hypervisor.nspawn.requirements import check_inotify_limit, missing_requirements
from rehearsal.hypervisor.registry import select_backend
from tests.problems import rejects


@pytest.fixture(autouse=True)
def all_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that meets all requirements."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "prefix", "/opt/trainyard/.venv")
    monkeypatch.setattr(sys, "version_info", (3, 11, 2, "final", 0))


def test_machine_with_all_requirements_has_no_problems() -> None:
    assert missing_requirements() == []


def test_unprivileged_user_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with rejects("root_required", "sudo make rehearsal BACKEND=nspawn"):
        select_backend("nspawn")


def test_missing_program_is_reported_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: None if program == "systemd-nspawn" else "/usr/bin/x")
    (problem,) = missing_requirements()
    assert (problem.value, problem.fix) == (
        "systemd-container",
        "On Debian or Ubuntu: apt-get install systemd-container",
    )


def test_environment_with_another_python_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1, "final", 0))
    (problem,) = missing_requirements()
    assert problem.value == "/usr, Python 3.12"


def test_environment_that_jobs_do_not_see_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/tmp/clone/.venv")
    (problem,) = missing_requirements()
    assert (problem.value, problem.code) == ("/tmp/clone/.venv", "environment_in_tmp")


def test_inotify_limit_is_reported_with_the_setting_to_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "max_user_instances"
    limit.write_text("128\n")
    monkeypatch.setattr(requirements, "INOTIFY_LIMIT", limit)
    assert check_inotify_limit(8) == []
    (problem,) = check_inotify_limit(9)
    assert (problem.value, problem.reason) == ("128", "9 booted nodes use up to 144 inotify instances")
    assert "sysctl -w fs.inotify.max_user_instances=1024" in problem.fix


def test_unknown_backend_is_rejected() -> None:
    with rejects("unknown_backend", "qemu"):
        select_backend("qemu")
