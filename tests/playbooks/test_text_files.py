"""The play's own module: several small files in one task."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

MODULE = Path(__file__).parents[2] / "playbooks/library/text_files.py"


def run(files: dict[str, str], **more: Any) -> dict[str, Any]:
    """As Ansible starts a module, with its arguments on standard input."""
    given = {"ANSIBLE_MODULE_ARGS": {"files": files, **more}}
    done = subprocess.run([sys.executable, MODULE], input=json.dumps(given), capture_output=True, text=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_it_writes_what_differs_and_nothing_else(tmp_path: Path) -> None:
    one, other = tmp_path / "new/one", tmp_path / "other"
    other.write_text("same")
    other.chmod(0o644)
    assert run({str(one): "1\n", str(other): "same"})["written"] == [str(one)]
    assert one.read_text() == "1\n"
    again = run({str(one): "1\n", str(other): "same"})
    assert (again["changed"], again["written"]) == (False, [])


def test_a_mode_is_mended(tmp_path: Path) -> None:
    file = tmp_path / "a"
    run({str(file): "x"}, mode="0755")
    file.chmod(0o600)
    assert run({str(file): "x"}, mode="0755")["changed"]
    assert file.stat().st_mode & 0o777 == 0o755


def test_check_mode_only_tells(tmp_path: Path) -> None:
    told = run({str(tmp_path / "a"): "x"}, _ansible_check_mode=True)
    assert told["changed"]
    assert not (tmp_path / "a").exists()


def test_a_place_that_takes_no_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = run({str(tmp_path / "file/a"): "x"})
    assert told["failed"]
    assert told["msg"].startswith(f"can't write {tmp_path / 'file'}")


def test_a_path_must_be_absolute() -> None:
    assert run({"a": "x"})["msg"] == "not absolute paths: a"
