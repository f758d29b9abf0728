"""A folder over HTTP for booted machines, through a socket in their switch's namespace. It can go away for a while."""

import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rehearsal.hypervisor.nspawn.network import GATEWAY, Network, listening


class Served:
    """`folder`, from `back` on."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder, self._network = folder, network
        self._server: _Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{GATEWAY}:{self.port}"

    def asked(self) -> list[str]:
        """Paths that were asked for so far, in their order."""
        return list(self._there.asked)

    def drop(self, count: int) -> None:
        """Close the next connections without an answer."""
        self._there.to_drop = count

    def dropped(self) -> bool:
        """Whether it has closed as many as it was told to."""
        return self._there.to_drop == 0

    @property
    def _there(self) -> "_Server":
        assert self._server is not None, "it is away"
        return self._server

    def away(self) -> None:
        """From now on connections are refused."""
        self._there.end()
        self._server = None

    def back(self) -> None:
        """Serve, again at the same address."""
        assert self._server is None, "it is there"
        listener = listening(self._network.hub, GATEWAY, self.port)
        self.port = listener.getsockname()[1]
        self._server = _Server(self.folder, listener)

    def close(self) -> None:
        if self._server is not None:
            self.away()


class _Handler(SimpleHTTPRequestHandler):
    server: "_Server"

    def do_GET(self) -> None:
        if self.server.drops():
            self.close_connection = True
            return
        self.server.asked.append(self.path)
        del self.headers["If-Modified-Since"]  # an index made twice in one second is not the same
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        where = listener.getsockname()
        super().__init__(where, partial(_Handler, directory=str(folder)), bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.asked: list[str] = []
        self.to_drop = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def drops(self) -> bool:
        with self._lock:
            if not self.to_drop:
                return False
            self.to_drop -= 1
            return True

    def end(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
