"""Serves a folder to booted machines over HTTP, through a socket in the network namespace of their bridge."""

import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from rehearsal.hypervisor.nspawn.network import GATEWAY, Network, listen_in_namespace


class FileServer:
    """Serves `folder` after `start`."""

    def __init__(self, folder: Path, network: Network) -> None:
        self.folder, self._network = folder, network
        self._server: _Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """The base URL for booted machines."""
        return f"http://{GATEWAY}:{self.port}"

    def requested_paths(self) -> list[str]:
        """Return the requested paths, in order."""
        return list(self._running_server.requested_paths)

    def drop_connections(self, count: int) -> None:
        """Close the next `count` connections without a response."""
        self._running_server.connections_to_drop = count

    def has_dropped_all(self) -> bool:
        """Return whether all connections of `drop_connections` were dropped."""
        return self._running_server.connections_to_drop == 0

    @property
    def _running_server(self) -> "_Server":
        assert self._server is not None, "the server is stopped"
        return self._server

    def stop(self) -> None:
        """Stop the server: connections are refused."""
        self._running_server.close()
        self._server = None

    def start(self) -> None:
        """Start the server; a restart uses the same port."""
        assert self._server is None, "the server is running"
        listener = listen_in_namespace(self._network.switch_namespace, GATEWAY, self.port)
        self.port = listener.getsockname()[1]
        self._server = _Server(self.folder, listener)

    def close(self) -> None:
        """Stop the server if it is running."""
        if self._server is not None:
            self.stop()


class _Handler(SimpleHTTPRequestHandler):
    server: "_Server"

    def do_GET(self) -> None:
        if self.server.drop_next():
            self.close_connection = True
            return
        self.server.requested_paths.append(self.path)
        del self.headers["If-Modified-Since"]  # an index that is written twice in one second would count as unmodified
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        address = listener.getsockname()
        super().__init__(address, partial(_Handler, directory=str(folder)), bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.requested_paths: list[str] = []
        self.connections_to_drop = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def drop_next(self) -> bool:
        with self._lock:
            if not self.connections_to_drop:
                return False
            self.connections_to_drop -= 1
            return True

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
