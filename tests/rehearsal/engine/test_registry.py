"""Which engine a rehearsal takes, and what is said where it can't be had."""

from pathlib import Path

import pytest

from rehearsal.engine.cli import NEEDED
from rehearsal.engine.registry import usable_engine
from trainyard.base import InputError


def program(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)


def test_mocks_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert usable_engine("mocks") == "mocks"


def test_unknown_engine_is_refused_with_those_there_are() -> None:
    with pytest.raises(
        InputError, match=r"--engine = 'terraform': no such engine\. Write one of mocks, pulumi, pulumi-aws\."
    ):
        usable_engine("terraform")


@pytest.mark.parametrize("engine", ["pulumi", "pulumi-aws"])
def test_without_the_cli_one_line_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as refused:
        usable_engine(engine)
    told = str(refused.value)
    assert told.startswith(
        f"--engine = '{engine}': pulumi and pulumi-language-python are not on PATH. Install the Pulumi CLI"
    )
    assert "\n" not in told


def test_cli_without_its_language_host_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "pulumi")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="'pulumi': pulumi-language-python is not on PATH"):
        usable_engine("pulumi")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a CLI that has fetched no plugin."""
    for name in NEEDED:
        program(tmp_path / "bin" / name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    return tmp_path


def test_without_the_plugin_one_line_says_what_is_missing(cli: Path) -> None:
    with pytest.raises(InputError) as refused:
        usable_engine("pulumi-aws")
    told = str(refused.value)
    assert told.startswith(
        "--engine = 'pulumi-aws': pulumi-resource-aws is neither on PATH nor among Pulumi's plugins. "
        "Run pulumi plugin install resource aws 7."
    )
    assert "\n" not in told


@pytest.mark.parametrize("place", ["bin", "home/plugins/resource-aws-v7.51.0"])
def test_plugin_is_found_on_path_and_among_pulumis_own(cli: Path, place: str) -> None:
    program(cli / place / "pulumi-resource-aws")
    assert usable_engine("pulumi-aws") == "pulumi-aws"


def test_cli_with_the_rehearsals_own_provider_needs_no_plugin(cli: Path) -> None:
    assert usable_engine("pulumi") == "pulumi"
