"""What make does before anything else."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_linked_environment_is_never_cleared(tmp_path: Path) -> None:
    """Another folder's: several work trees may share it."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/kept").touch()
    (tmp_path / ".venv").symlink_to(tmp_path / "shared")
    words = ["make", "--no-print-directory", "-f", str(ROOT / "Makefile"), "setup", "REQUIREMENTS="]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f".venv is a link to {tmp_path}/shared" in done.stderr
    assert (tmp_path / "shared/kept").exists()
