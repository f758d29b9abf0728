"""Selection of the engine, and the errors for an engine that is not installed."""

from pathlib import Path

import pytest

from rehearsal.engine.cli import REQUIRED_PROGRAMS
from rehearsal.engine.registry import select_engine
from tests.problems import rejects
from trainyard.errors import InputError


def program(file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)


def test_mocks_need_no_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert select_engine("mocks") == "mocks"


def test_error_of_an_unknown_engine_lists_the_engines() -> None:
    with rejects("unknown_engine", "terraform", "mocks, pulumi, pulumi-aws"):
        select_engine("terraform")


@pytest.mark.parametrize("engine", ["pulumi", "pulumi-aws"])
def test_error_without_the_cli_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as raised:
        select_engine(engine)
    described = str(raised.value)
    assert described.startswith(
        f"--engine = '{engine}': pulumi and pulumi-language-python are not on PATH. Install the Pulumi CLI"
    )
    assert "\n" not in described


def test_error_without_the_language_host_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(tmp_path / "pulumi")
    monkeypatch.setenv("PATH", str(tmp_path))
    with rejects("program_not_on_path", "pulumi-language-python"):
        select_engine("pulumi")


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a CLI without installed plugins."""
    for name in REQUIRED_PROGRAMS:
        program(tmp_path / "bin" / name)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path / "home"))
    return tmp_path


def test_error_without_the_plugin_is_one_line(cli: Path) -> None:
    with pytest.raises(InputError) as raised:
        select_engine("pulumi-aws")
    described = str(raised.value)
    assert described.startswith(
        "--engine = 'pulumi-aws': pulumi-resource-aws is not on PATH and not among Pulumi's installed plugins. "
        "Run pulumi plugin install resource aws 7."
    )
    assert "\n" not in described


@pytest.mark.parametrize("place", ["bin", "home/plugins/resource-aws-v7.51.0"])
def test_plugin_may_be_on_path_or_installed_by_pulumi(cli: Path, place: str) -> None:
    program(cli / place / "pulumi-resource-aws")
    assert select_engine("pulumi-aws") == "pulumi-aws"


def test_pulumi_engine_needs_no_plugin(cli: Path) -> None:
    assert select_engine("pulumi") == "pulumi"
