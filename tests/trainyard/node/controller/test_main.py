"""The loop of the controller."""

import threading
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from trainyard.node.controller import __main__ as main


class Server:
    """An agent server with a staging bucket that does not respond."""

    def is_published(self, staging: Any) -> bool:
        raise EndpointConnectionError(endpoint_url="s3")

    def wait(self, seconds: float) -> None:
        """Do not wait."""


def test_run_is_controlled_while_s3_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "PUBLISHED_POLL_SECONDS", 0.0)
    monkeypatch.setattr(main, "is_outdated", lambda _: False)
    stop, steps = threading.Event(), list[int]()

    class Controller:
        """A controller that makes three steps."""

        def step(self) -> None:
            steps.append(1)
            if len(steps) == 3:
                stop.set()

    arguments: Any = (None, Controller(), Server(), None, stop)
    assert main._control(*arguments) == 0
    assert len(steps) == 3
