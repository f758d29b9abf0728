"""WSGI server: HTTP/1.1 with keep-alive connections, so that polling is cheap, and no request log."""

import re
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import ThreadedWSGIServer

from rehearsal.browser_requests import reason_to_refuse

WsgiApp = Any
_BODYLESS = {204, 304}
_ADDRESS = re.compile(r"[0-9.]+(:\d+)?")
HEADERS = "rehearsal.headers"
"""Key of the request's original headers in the WSGI environment."""


class Handler(MotoRequestHandler):
    """Handler of one connection. Werkzeug's handler closes it after each response, then waits 10 ms for stray input."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 64 * 1024

    def run_wsgi(self) -> None:
        """Serve one request. The whole body is read first, since a keep-alive connection must not retain part of it."""
        self.environ = environ = self.make_environ()
        body = environ["wsgi.input"]
        length = environ.get("CONTENT_LENGTH")
        data = body.read() if environ.get("wsgi.input_terminated") else self.rfile.read(int(length or 0))
        environ["wsgi.input"] = BytesIO(data)
        environ["CONTENT_LENGTH"] = str(len(data))
        environ[HEADERS] = self.headers
        if reason := reason_to_refuse(self.headers.get("Host"), self.headers.get("Origin")):
            self.send_error(403, explain=reason)
            return

        if _ADDRESS.fullmatch(environ.get("HTTP_HOST", "")):
            # Booted nodes connect through a relay. A host that is an IP address contains no bucket name.
            environ["HTTP_HOST"] = f"127.0.0.1:{self.server.server_port}"

        started: list[tuple[int, list[tuple[str, str]]]] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], exc_info: object = None
        ) -> Callable[[bytes], Any]:
            started[:] = [(int(status.split()[0]), headers)]
            return lambda data: None

        app: WsgiApp = self.server.app
        chunks: Iterable[bytes] = app(environ, start_response)
        payload = b"".join(chunks)
        code, headers = started[0]
        self.send_response(code)
        for name, value in headers:
            if name.lower() not in {"connection", "transfer-encoding"}:
                self.send_header(name, value)
        known = {name.lower() for name, _ in headers}
        head = environ["REQUEST_METHOD"] == "HEAD"
        if "content-length" not in known and code not in _BODYLESS:
            self.send_header("Content-Length", "0" if head else str(len(payload)))
        self.end_headers()
        if not head and code not in _BODYLESS:
            self.wfile.write(payload)
        self.wfile.flush()

    def handle_expect_100(self) -> bool:
        """Send 100 Continue at once: without it a client waits a second before it sends the body."""
        proceed: bool = super().handle_expect_100()
        self.wfile.flush()
        return proceed

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Write nothing: the journal records the calls."""


def make_server(app: WsgiApp, port: int) -> ThreadedWSGIServer:
    """Return a threaded server that listens on 127.0.0.1; port 0: a free port."""
    return ThreadedWSGIServer("127.0.0.1", port, app, handler=Handler)
