"""Which engine a rehearsal takes, and what is said where it can't be had."""

from pathlib import Path

import pytest

from contract.base import InputError
from rehearsal.engine.choice import usable_engine


def test_mocks_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert usable_engine("mocks") == "mocks"


def test_unknown_engine_is_refused_with_those_there_are() -> None:
    with pytest.raises(InputError, match=r"--engine = 'terraform': no such engine\. Write one of mocks, pulumi\."):
        usable_engine("terraform")


def test_without_the_cli_one_line_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as refused:
        usable_engine("pulumi")
    told = str(refused.value)
    assert told.startswith(
        "--engine = 'pulumi': pulumi and pulumi-language-python are not on PATH. Install the Pulumi CLI"
    )
    assert "\n" not in told


def test_cli_without_its_language_host_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pulumi").write_text("#!/bin/sh\n")
    (tmp_path / "pulumi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="'pulumi': pulumi-language-python is not on PATH"):
        usable_engine("pulumi")
