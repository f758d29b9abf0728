"""Options of `trainyard rehearse`."""

from pathlib import Path

import pytest

from trainyard.cli.rehearse import absolute_folders


def test_folders_are_relative_to_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["-s", "local", "--data", "books", "--model=/models/llama", "--model=llama"]
    assert absolute_folders(arguments) == [
        *("-s", "local", "--data", f"{tmp_path}/books", "--model=/models/llama", f"--model={tmp_path}/llama")
    ]
