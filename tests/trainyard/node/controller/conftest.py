"""Tests of the controller read events from S3 at each step, because their nodes have no connection."""

import pytest

from trainyard.node.controller import node_reports


@pytest.fixture(autouse=True)
def no_poll_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_reports, "S3_POLL_SECONDS", 0.0)
