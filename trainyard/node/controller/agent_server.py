"""The controller's end of the connections with the agents: a WebSocket server with TLS.

Agents find its address, certificate and token in the staging bucket. They send heartbeats and events, and receive the
requests of the controller when these change. S3 has the same events and requests: a node that is not connected
uses them, and so does a restarted controller.
"""

import asyncio
import hmac
import logging
import secrets
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from trainyard.aws.s3 import Bucket
from trainyard.models.connection import AGENT_MESSAGE, AGENT_PORT, ControllerEndpoint, ControlMessage, Heartbeat
from trainyard.models.events import NodeEvent
from trainyard.models.layout import CONTROLLER_ENDPOINT
from trainyard.models.run import Control
from trainyard.node.controller.certificate import create_certificate, server_context
from trainyard.node.identity import Node

# A failed rank is reported with its traceback (6 KB): some hundred kilobytes for a node of eight.
MAXIMUM_MESSAGE_BYTES = 8 << 20
START_TIMEOUT_SECONDS = 30.0
_CONTROLLER_ONLY = {"control": {"decisions", "newest_checkpoint"}}  # fields that agents do not need
LOG = logging.getLogger("controller.agents")


@dataclass(frozen=True)
class ReceivedHeartbeat:
    """The newest heartbeat of a node, and when it arrived: time.monotonic() of the head."""

    heartbeat: Heartbeat
    received_at: float


class AgentServer:
    """Serves the connections of all agents in a separate thread. All methods may be called from other threads.

    `port`: TCP port on the address of the node; 0: a free port.
    """

    def __init__(self, node: Node, port: int = AGENT_PORT) -> None:
        self._node, self._port = node, port
        self._token = secrets.token_urlsafe(32)
        self._certificate, self._key = create_certificate(node.address)
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._heartbeats: dict[str, ReceivedHeartbeat] = {}
        self._events: list[NodeEvent] = []
        self._connections: dict[str, ServerConnection] = {}
        self._message: str | None = None
        self._loop = asyncio.new_event_loop()
        self._started, self._stopping = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="agent server", daemon=True)

    def start(self, staging: Bucket) -> None:
        """Start the server, and publish where it is. Raises TimeoutError if it does not start."""
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_SECONDS):
            raise TimeoutError(f"the agent server did not start within {START_TIMEOUT_SECONDS:.0f} s")
        endpoint = ControllerEndpoint(
            address=self._node.address, port=self._port, certificate=self._certificate, token=self._token
        )
        staging.write(CONTROLLER_ENDPOINT, endpoint.model_dump_json().encode())
        LOG.info("agents connect to %s:%d", self._node.address, self._port)

    def is_published(self, staging: Bucket) -> bool:
        """Return whether agents find this server: False when the controller of another head has started later."""
        content = staging.find(CONTROLLER_ENDPOINT)
        return content is not None and ControllerEndpoint.model_validate_json(content).token == self._token

    def close(self) -> None:
        """Close all connections and stop the server."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join()

    def wait(self, seconds: float) -> None:
        """Wait until an event has arrived, or for this time."""
        self._changed.wait(seconds)
        self._changed.clear()

    def take_events(self) -> list[NodeEvent]:
        """Return the events since the last call, those of one node in their order."""
        with self._lock:
            events, self._events = self._events, []
            return events

    def heartbeats(self) -> dict[str, ReceivedHeartbeat]:
        """Return instance -> its newest heartbeat on a connection."""
        with self._lock:
            return dict(self._heartbeats)

    def connected_nodes(self) -> frozenset[str]:
        """Return the instances whose agents are connected."""
        with self._lock:
            return frozenset(self._connections)

    def publish(self, run: str, control: Control) -> None:
        """Send the requests to all connected agents, and to each agent that connects later.

        Fields that only the controller needs are omitted, because they may be large: decisions name all nodes.
        """
        message = ControlMessage(run=run, control=control).model_dump_json(exclude=_CONTROLLER_ONLY)
        with self._lock:
            self._message, connections = message, list(self._connections.values())
        for connection in connections:
            asyncio.run_coroutine_threadsafe(_send(connection, message), self._loop)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        async with serve(
            self._handle,
            self._node.address,
            self._port,
            ssl=server_context(self._certificate, self._key),
            max_size=MAXIMUM_MESSAGE_BYTES,
            process_request=self._authenticate,
            server_header=None,
            compression=None,  # the messages are small
        ) as server:
            self._port = next(iter(server.sockets)).getsockname()[1]
            self._started.set()
            await self._stopping.wait()

    def _authenticate(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse a request without the token."""
        expected = f"Bearer {self._token}"
        if hmac.compare_digest(request.headers.get("Authorization", "").encode(), expected.encode()):
            return None
        return connection.respond(HTTPStatus.UNAUTHORIZED, "the token differs from the token of the controller\n")

    async def _handle(self, connection: ServerConnection) -> None:
        """Receive the messages of one agent until its connection ends. Its first message is a heartbeat."""
        instance = ""
        try:
            async for text in connection:
                message = AGENT_MESSAGE.validate_json(text)
                if not instance:
                    instance = message.instance
                    await self._add(instance, connection)
                if message.instance != instance:
                    raise ValueError(f"a message names the node {message.instance}")
                self._receive(message)
        except (ConnectionClosed, ValueError) as error:  # ValidationError is a ValueError
            LOG.info("the connection with %s ended: %s", instance or connection.remote_address, error)
        finally:
            with self._lock:
                if self._connections.get(instance) is connection:
                    del self._connections[instance]

    async def _add(self, instance: str, connection: ServerConnection) -> None:
        with self._lock:
            self._connections[instance], message = connection, self._message
        if message is not None:
            await _send(connection, message)

    def _receive(self, message: NodeEvent | Heartbeat) -> None:
        with self._lock:
            if isinstance(message, Heartbeat):
                self._heartbeats[message.instance] = ReceivedHeartbeat(message, time.monotonic())
                return
            self._events.append(message)
        self._changed.set()


async def _send(connection: ServerConnection, message: str) -> None:
    with suppress(ConnectionClosed):
        await connection.send(message)
