"""boto3 against the account that AWS_ENDPOINT_URL names. Each call tells in a header which resource it serves."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from rehearsal.adapter.errors import WaitExpired

URN_HEADER = "x-trainyard-urn"
# Of its own: the journal tells its calls from those of `trainyard`.
ACCESS_KEY = "AKIAREHEARSALADAPTER"
_POLL_SECONDS = 0.1
T = TypeVar("T")


class Aws:
    """Clients of one region, shared among threads."""

    def __init__(self, region: str) -> None:
        import boto3  # here: a static account never asks for it, and it takes a tenth of a preview

        self.region = region
        self._session = boto3.Session(
            region_name=region,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key="rehearsal",  # noqa: S106
        )
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._serving = threading.local()

    def client(self, service: str) -> Any:
        from botocore.config import Config

        with self._lock:  # making a client is not thread-safe, using one is
            if service not in self._clients:
                config = Config(retries={"mode": "standard"}, max_pool_connections=32)
                made = self._session.client(service, config=config)
                made.meta.events.register("before-call", self._tell_urn)
                self._clients[service] = made
            return self._clients[service]

    @contextmanager
    def serving(self, urn: str) -> Iterator[None]:
        """Calls of this thread serve the resource `urn` meanwhile."""
        self._serving.urn = urn
        try:
            yield
        finally:
            self._serving.urn = None

    def _tell_urn(self, params: dict[str, Any], **_: Any) -> None:
        urn = getattr(self._serving, "urn", None)
        if urn:
            params["headers"][URN_HEADER] = urn


def wait_until(what: str, probe: Callable[[], T | None], seconds: float) -> T:
    """Poll until `probe` answers something true. Raises WaitExpired that says what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise WaitExpired(f"waited {seconds:.0f} s until {what}")
        time.sleep(_POLL_SECONDS)
