"""The imports of a script and a dry run, run by the Python of the tests."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.wheels import Wheel
from trainyard.errors import Problem
from trainyard.job_source import trials
from trainyard.job_source.trials import installed_wheels, try_dry_run, try_imports

PYTHON = Path(sys.executable)


def try_script(folder: Path, text: str, **modules: str) -> tuple[Problem | None, str | None]:
    for name, code in {"train": text, **modules}.items():
        (folder / f"{name}.py").write_text(code)
    return try_imports(PYTHON, folder, "train.py", {})


def test_only_the_imports_of_the_script_run(tmp_path: Path) -> None:
    text = "import model\nraise SystemExit(f'{model} ran')\n"
    assert try_script(tmp_path, text, model="") == (None, None)


def test_error_of_an_imported_module_has_its_line(tmp_path: Path) -> None:
    problem, _ = try_script(tmp_path, "import model\n", model="import json\nfrom json import missing_name\n")
    assert problem is not None
    assert (problem.code, problem.key) == ("import_failed", "model.py:2")
    assert problem.value == "from json import missing_name"


def test_optional_import_may_fail(tmp_path: Path) -> None:
    text = "try:\n    import missing_package\nexcept ImportError:\n    missing_package = None\n"
    assert try_script(tmp_path, text) == (None, None)


@pytest.mark.parametrize(
    "code", ["import os\nos.environ['OF_NODES']\n", "raise ImportError('libcuda.so.1: no file')\n"]
)
def test_error_that_nodes_may_not_have_is_a_warning(tmp_path: Path, code: str) -> None:
    problem, warning = try_script(tmp_path, "import model\n", model=code)
    assert problem is None
    assert warning is not None
    assert "model.py" in warning


def test_slow_imports_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "IMPORT_SECONDS", 0.5)
    problem, warning = try_script(tmp_path, "import model\n", model="import time\ntime.sleep(60)\n")
    assert problem is None
    assert warning is not None
    assert "were stopped" in warning


def test_locked_wheels_are_importable(tmp_path: Path) -> None:
    wheel = Wheel(name="locked_package").build(tmp_path)
    (tmp_path / "train.py").write_text("import locked_package\n")
    with installed_wheels(PYTHON, [wheel]) as packages:
        assert try_imports(PYTHON, tmp_path, "train.py", {"PYTHONPATH": packages}) == (None, None)
    problem, _ = try_imports(PYTHON, tmp_path, "train.py", {})
    assert problem is not None


def test_wheels_are_installed_for_the_interpreter_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Sequence[str]] = []
    monkeypatch.setattr(trials, "run_tool", lambda command, folder: commands.append(command))
    with installed_wheels(Path("/venv/bin/python"), [tmp_path / "a.whl"]):
        pass
    (command,) = commands
    assert command[command.index("--python") + 1] == "/venv/bin/python"


def test_dry_run_has_the_variables_of_a_job(tmp_path: Path) -> None:
    text = "import os, sys\nassert sys.argv[1:] == ['--dry-run'] and os.environ['RANK'] == '0'\n"
    (tmp_path / "train.py").write_text(text)
    assert try_dry_run(PYTHON, tmp_path, ("train.py", "--dry-run"), {"RANK": "0"}) is None


def test_failed_dry_run_is_reported_with_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('no such column')\n")
    problem = try_dry_run(PYTHON, tmp_path, ("train.py",), {})
    assert problem is not None
    assert (problem.code, "no such column" in problem.reason) == ("dry_run_failed", True)
