"""The agent's connection to the controller on the head.

It sends a heartbeat every five seconds and each event at once, and receives the requests of the controller. Without a
connection, which is retried, the agent reads the requests from S3 and writes its heartbeats there: the job continues
while the head is unavailable.

One thread reads and writes, with asyncio: OpenSSL does not support a connection that two threads use at the same time,
and Python 3.11 does not prevent it. The process then aborts.
"""

import asyncio
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from trainyard.aws.s3 import Bucket
from trainyard.base import StrictModel
from trainyard.models.connection import ControllerEndpoint, ControlMessage, Heartbeat
from trainyard.models.layout import CONTROLLER_ENDPOINT, RunLayout
from trainyard.models.run import Control

HEARTBEAT_SECONDS = 5.0
# With the longest time between two attempts, shorter than the silence after which the controller suspects a node.
CONNECT_TIMEOUT_SECONDS = 5.0
SEND_TIMEOUT_SECONDS = 5.0
RETRY_SECONDS = (1.0, 10.0)  # the first and the longest time between two attempts to connect
LOG = logging.getLogger("agent.connection")


class HeadConnection:
    """Connection of one agent, in a thread, until `close`.

    `heartbeat`: creates a heartbeat. `changed`: set when new requests have arrived.
    """

    def __init__(self, staging: Bucket, data: Bucket, heartbeat: Callable[[], Heartbeat]) -> None:
        self._staging, self._data, self._heartbeat = staging, data, heartbeat
        self.changed = threading.Event()
        self._lock = threading.Lock()
        self._connection: ClientConnection | None = None
        self._control: ControlMessage | None = None
        self._events: list[str] = []
        self._stored_at = 0.0
        self._closing = threading.Event()
        self._loop: asyncio.AbstractEventLoop  # of the thread
        self._thread = threading.Thread(target=self._run, name="connection to the head", daemon=True)

    def start(self) -> None:
        """Start to connect."""
        self._loop = asyncio.new_event_loop()
        self._thread.start()

    def control(self, run: str) -> Control | None:
        """Return the newest requests for agents of this run; None if S3 must be read: there is no connection."""
        with self._lock:
            message = self._control
            return message.control if self._connection is not None and message and message.run == run else None

    def send(self, event: StrictModel, *, repeat: bool = True) -> None:
        """Send an event now; with `repeat` also on each later connection, because this connection may have lost it."""
        text = event.model_dump_json()
        with self._lock:
            if repeat:
                self._events.append(text)
            connection = self._connection
        if connection is not None:
            self._run_in_thread(connection.send(text))

    def close(self) -> None:
        """Close the connection."""
        self._closing.set()
        with self._lock:
            connection = self._connection
        if connection is not None:
            self._run_in_thread(connection.close())
        if self._thread.is_alive():
            self._thread.join()

    def _run_in_thread(self, operation: Coroutine[Any, Any, None]) -> None:
        """Run an operation of the connection in its thread; wait for it. Its failure ends the connection."""
        with suppress(Exception):  # also those of an event loop that has ended
            asyncio.run_coroutine_threadsafe(operation, self._loop).result(SEND_TIMEOUT_SECONDS)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._connect_repeatedly())
        finally:
            self._loop.close()

    async def _connect_repeatedly(self) -> None:
        """Connect until `close`. Between connections nothing else runs in this thread, so calls may block it."""
        wait, longest = RETRY_SECONDS
        while not self._closing.is_set():
            try:
                connected_at = time.monotonic()
                await self._serve_connection()
            except Exception as error:
                LOG.info("no connection to the head: %s: %s", type(error).__name__, error)
                if time.monotonic() > connected_at + longest:
                    wait = RETRY_SECONDS[0]
            self._store_heartbeat()
            # After a restart of the head, a thousand agents do not connect at the same moment.
            self._closing.wait(wait * random.uniform(0.5, 1.0))
            wait = min(2 * wait, longest)

    async def _serve_connection(self) -> None:
        """Connect, and exchange messages until the connection ends. Raises the error that ends it."""
        content = self._staging.find(CONTROLLER_ENDPOINT)
        if content is None:
            raise ConnectionError("the controller has not started yet")
        endpoint = ControllerEndpoint.model_validate_json(content)
        async with connect(
            f"wss://{endpoint.address}:{endpoint.port}",
            ssl=ssl.create_default_context(cadata=endpoint.certificate),
            additional_headers={"Authorization": f"Bearer {endpoint.token}"},
            open_timeout=CONNECT_TIMEOUT_SECONDS,
            close_timeout=1.0,
            proxy=None,
            max_size=None,
            compression=None,
        ) as connection:
            try:
                await self._start_sending(connection)
                await self._exchange(connection)
            finally:
                with self._lock:
                    self._connection = self._control = None

    async def _start_sending(self, connection: ClientConnection) -> None:
        """Send a heartbeat, which names this node, and all events so far."""
        await connection.send(self._heartbeat().model_dump_json())
        with self._lock:
            events, self._connection = list(self._events), connection
        for text in events:
            await connection.send(text)

    async def _exchange(self, connection: ClientConnection) -> None:
        sent_at = time.monotonic()
        while not self._closing.is_set():
            remaining = sent_at + HEARTBEAT_SECONDS - time.monotonic()
            try:
                text = await asyncio.wait_for(connection.recv(), max(remaining, 0.0))
            except TimeoutError:
                await connection.send(self._heartbeat().model_dump_json())
                sent_at = time.monotonic()
                continue
            message = ControlMessage.model_validate_json(text)
            with self._lock:
                self._control = message
            self.changed.set()

    def _store_heartbeat(self) -> None:
        """Write a heartbeat to S3, if the last is old enough."""
        now = time.monotonic()
        if now < self._stored_at + HEARTBEAT_SECONDS or self._closing.is_set():
            return
        heartbeat = self._heartbeat()
        try:
            self._data.write(
                RunLayout(heartbeat.run).heartbeat(heartbeat.instance), heartbeat.model_dump_json().encode()
            )
            self._stored_at = now
        except Exception as error:
            LOG.warning("the heartbeat was not written to S3: %s", error)
