"""boto3 clients of the emulated account. A header of each request names the resource that it is for."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rehearsal.adapter.errors import WaitTimeoutError
from rehearsal.aws.account_file import FILE_VARIABLE, AccountFile

URN_HEADER = "x-trainyard-urn"
_POLL_SECONDS = 0.1
T = TypeVar("T")


class AwsClients:
    """boto3 clients of one region, shared by all threads."""

    def __init__(self, region: str, session: Any = None) -> None:
        """Use the credentials of `session`, a boto3 session; None: a key that is allowed everything."""
        import boto3  # here, because a static account never needs it, and the import is a tenth of a preview's duration

        self.region = region
        if session is None:
            # A separate key, so that the journal distinguishes the adapter's requests from those of `trainyard`.
            key = AccountFile.read(Path(os.environ[FILE_VARIABLE])).secrets.adapter
            session = boto3.Session(key.id, key.secret, region_name=region)
        self._session = session
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._current = threading.local()

    def client(self, service: str) -> Any:
        """Return the client of an AWS service, created on first use."""
        from botocore.config import Config

        with self._lock:  # creating a client is not thread-safe, using it is
            if service not in self._clients:
                config = Config(retries={"mode": "standard"}, max_pool_connections=32)
                client = self._session.client(service, config=config)
                client.meta.events.register("before-call", self._add_urn_header)
                self._clients[service] = client
            return self._clients[service]

    @contextmanager
    def requests_for(self, urn: str) -> Iterator[None]:
        """Mark the requests of this thread, inside the context, as requests for the resource `urn`."""
        self._current.urn = urn
        try:
            yield
        finally:
            self._current.urn = None

    def _add_urn_header(self, params: dict[str, Any], **_: Any) -> None:
        urn = getattr(self._current, "urn", None)
        if urn:
            params["headers"][URN_HEADER] = urn


def wait_until(condition: str, probe: Callable[[], T | None], timeout_seconds: float) -> T:
    """Poll `probe` until its result is true, and return the result.

    Raises WaitTimeoutError that names the condition.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        result = probe()
        if result:
            return result
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"not reached within {timeout_seconds:.0f} s: {condition}")
        time.sleep(_POLL_SECONDS)
