"""A server on loopback with the part of the Hugging Face hub's API that a download of a model uses."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

COMMIT = "0" * 40


@contextmanager
def serve_model(name: str, folder: Path) -> Iterator[str]:
    """Serve the files of a folder as the model `name`; yield the endpoint."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._respond(has_body=False)

        def do_GET(self) -> None:
            self._respond(has_body=True)

        def _respond(self, *, has_body: bool) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/{name}/revision/"):
                siblings = [{"rfilename": file.name} for file in sorted(folder.iterdir())]
                self._send(json.dumps({"id": name, "sha": COMMIT, "siblings": siblings}).encode(), has_body=has_body)
            elif path.startswith(f"/api/models/{name}/tree/"):
                files = [
                    {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _digest(file)}
                    for file in sorted(folder.iterdir())
                ]
                self._send(json.dumps(files).encode(), has_body=has_body)
            elif path.startswith(f"/{name}/resolve/") and (file := folder / path.rpartition("/")[2]).is_file():
                self._send(file.read_bytes(), has_body=has_body, etag=_digest(file))
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def _send(self, content: bytes, *, has_body: bool, etag: str = "") -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Repo-Commit", COMMIT)
            if etag:
                self.send_header("ETag", f'"{etag}"')
            self.end_headers()
            if has_body:
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _digest(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()
