"""The verification that the job cannot reach the metadata service, with stand-ins for namespaces and user."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.machines import ROOT

SCRIPT = ROOT / "playbooks/roles/job/files/verify-metadata.sh"
PROGRAMS = {
    "python": "true",  # root reaches the metadata service
    "unshare": 'for option; do case $option in --*) shift;; *) break;; esac; done; IN_CONTAINER=1 exec "$@"',
}


def verify(folder: Path, setpriv: str, unshare: str = PROGRAMS["unshare"]) -> subprocess.CompletedProcess[str]:
    """Run the verification. `setpriv`: shell command that succeeds if the user reaches the metadata service."""
    for name, text in {**PROGRAMS, "setpriv": setpriv, "unshare": unshare}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}"}
    command = ["/bin/sh", str(SCRIPT), str(folder / "python"), "59000"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_user_without_access_passes(tmp_path: Path) -> None:
    result = verify(tmp_path, "exit 1")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("setpriv", "message"),
    [
        ("exit 0", "the user 59000 reaches the metadata service: check"),
        ('test -n "$IN_CONTAINER"', "the user 59000 reaches the metadata service in a container: check"),
    ],
)
def test_access_of_a_process_or_a_container_is_reported(setpriv: str, message: str, tmp_path: Path) -> None:
    result = verify(tmp_path, setpriv)
    assert result.returncode == 1
    assert message in result.stderr


def test_namespaces_that_cannot_be_created_fail_the_verification(tmp_path: Path) -> None:
    assert verify(tmp_path, "exit 1", unshare="exit 1").returncode == 1
