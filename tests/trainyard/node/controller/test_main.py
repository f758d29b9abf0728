"""The loop of the controller."""

import socket
import threading
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from tests.polling import eventually
from trainyard.models.connection import ControllerEndpoint
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


class ReplacedServer(Server):
    """A server that agents do not find any more."""

    is_closed = False

    def is_published(self, staging: Any) -> bool:
        return False

    def close(self) -> None:
        """Close the connections."""
        self.is_closed = True


class Staging:
    """A staging bucket with the endpoint of another controller."""

    def __init__(self, port: int) -> None:
        endpoint = ControllerEndpoint(address="127.0.0.1", port=port, certificate="", token="0" * 32)
        self.content = endpoint.model_dump_json().encode()

    def read(self, key: str) -> bytes:
        return self.content


def test_controller_starts_again_when_the_controller_of_another_head_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main, "PUBLISHED_POLL_SECONDS", 0.01)
    monkeypatch.setattr(main, "UNREACHABLE_SECONDS", 0.1)
    monkeypatch.setattr(main, "is_outdated", lambda _: False)
    stop, server = threading.Event(), ReplacedServer()
    other = socket.create_server(("127.0.0.1", 0))
    arguments: Any = (None, None, server, Staging(other.getsockname()[1]), stop)
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main._control(*arguments)))
    thread.start()
    eventually(lambda: server.is_closed, "the end of the server")
    other.accept()[0].close()
    assert codes == []
    other.close()
    thread.join(20)
    assert codes == [1]
