"""The region of a stack's commands: aws:region of its file."""

import pytest

from tests.problems import rejects
from trainyard.operations.cluster import Cluster


def test_region_is_that_of_the_stack_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert Cluster.from_environment("a100-cluster").region == "us-east-1"
    assert Cluster.from_environment("without-file").region == "eu-west-1"


def test_other_region_in_the_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a command would reserve or buy capacity that the stack cannot use."""
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    with rejects("region_differs", "AWS_REGION"):
        Cluster.from_environment("a100-cluster")
