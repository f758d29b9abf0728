"""Tests of the Makefile."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_setup_does_not_clear_a_symlinked_virtual_environment(tmp_path: Path) -> None:
    """Several working trees may share the virtual environment."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/file").touch()
    (tmp_path / ".venv").symlink_to(tmp_path / "shared")
    command = ["make", "--no-print-directory", "-f", str(ROOT / "Makefile"), "setup", "REQUIREMENTS="]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 2
    assert f".venv is a link to {tmp_path}/shared" in process.stderr
    assert (tmp_path / "shared/file").exists()
