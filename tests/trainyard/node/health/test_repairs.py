"""Repairs: the commands that they run, and the fallback to a reboot."""

from pathlib import Path
from typing import Literal

import pytest

from trainyard.node.health.kernel_log import read_repaired
from trainyard.node.health.monitor import HealthMonitor
from trainyard.node.health.repairs import repair

SCRIPT = """#!/bin/sh
echo "$(basename "$0") $*" >> {calls}
case "$*" in *compute-apps*) {query};; --gpu-reset) exit {status};; esac
"""


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Root of a node with one record in its kernel log."""
    for name in ("dev", "run", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "dev/kmsg").write_text("6,17,1,-;text\n")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path


def run_repair(node: Path, action: Literal["reset", "reboot"], query: str = "true", status: int = 0) -> list[str]:
    """Carry out a repair with programs that only record their calls. Returns result and calls."""
    calls = node / "calls"
    for name in ("nvidia-smi", "systemctl"):
        program = node / "bin" / name
        program.write_text(SCRIPT.format(calls=calls, query=query, status=status))
        program.chmod(0o755)
    return [repair(action, HealthMonitor(()), node), *calls.read_text().splitlines()]


QUERY = "nvidia-smi --query-compute-apps=pid --format=csv,noheader"
RESET = [
    "systemctl stop nvidia-persistenced.service",
    "nvidia-smi --gpu-reset",
    "systemctl start nvidia-persistenced.service",
]


def test_reset_resets_all_gpus_and_marks_the_kernel_log(node: Path) -> None:
    assert run_repair(node, "reset") == ["reset", QUERY, *RESET]
    assert read_repaired(node) == 17


def test_failed_reset_becomes_a_reboot(node: Path) -> None:
    assert run_repair(node, "reset", status=3) == ["reboot", QUERY, *RESET, "systemctl reboot"]
    assert read_repaired(node) == -1


def test_gpus_in_use_are_not_reset(node: Path) -> None:
    assert run_repair(node, "reset", query="echo 4242") == ["reboot", QUERY, "systemctl reboot"]


def test_reboot_reboots(node: Path) -> None:
    assert run_repair(node, "reboot") == ["reboot", "systemctl reboot"]
