"""The command line of `trainyard init`."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainyard.cli.app import app


def test_options_of_a_script_without_a_script_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["init", "dev", "--source", "src", "--data", "my-text"])
    assert result.exit_code == 2
    assert "--source = 'src'" in result.stderr
    assert "--data = 'my-text'" in result.stderr
    assert not list(tmp_path.iterdir())
