"""The region of a stack's commands: aws:region of its file."""

from pathlib import Path

import pytest

from tests.problems import rejects
from trainyard.config.project import PROJECT_ROOT, read_project
from trainyard.operations.cluster import Cluster

PROJECT = read_project(PROJECT_ROOT)


def test_region_is_that_of_the_stack_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert Cluster.from_environment("a100-cluster", project=PROJECT).region == "us-east-1"
    assert Cluster.from_environment("without-file", project=PROJECT).region == "eu-west-1"


def test_other_region_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a command would reserve or buy capacity that the stack cannot use."""
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    with rejects("region_differs", "AWS_REGION"):
        Cluster.from_environment("a100-cluster", project=PROJECT)


@pytest.fixture
def no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


@pytest.mark.usefixtures("no_region")
def test_missing_stack_file_precedes_the_missing_region() -> None:
    with rejects("unknown_stack", "--stack = 'locl'", "Did you mean local? Use one of a100-cluster,"):
        Cluster.from_environment("locl", project=PROJECT)


@pytest.mark.usefixtures("no_region")
def test_region_is_required(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.bare.yaml").write_text("config: {}")
    with rejects("region_missing", "AWS_REGION"):
        Cluster.from_environment("bare", project=read_project(tmp_path))


@pytest.mark.parametrize("region", ["us-est-1", "us east 1"])
@pytest.mark.usefixtures("no_region")
def test_unknown_region_is_refused(region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", region)
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")  # only the region is checked
    with rejects("unknown_region", "AWS_REGION"):
        Cluster.from_environment("without-file", project=PROJECT)
