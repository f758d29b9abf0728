"""A local S3 server for benchmarks: Versity S3 Gateway with a folder as storage."""

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection, create_server
from unittest.mock import patch

import boto3
from botocore.config import Config

PROGRAM = "versitygw"
INSTALL = f"go install github.com/versity/{PROGRAM}/cmd/{PROGRAM}@v1.8.0"
BUCKET = "benchmark"
_REGION = "us-east-1"


class S3ServerError(Exception):
    """The server's program is missing or fails; the message describes how to install it."""


def find_server(program: Path | None) -> Path:
    """Return the path of the server's program: `program`, or the program on PATH."""
    path = program or shutil.which(PROGRAM)
    if not path or not Path(path).is_file():
        raise S3ServerError(f"S3 server {program or PROGRAM} not found: {INSTALL}, then add it to PATH or set --server")
    return Path(path)


def read_version(program: Path) -> str:
    """Return the version, which the Go toolchain embeds in the program."""
    match = re.search(rb"\tgithub\.com/versity/versitygw\t(v[0-9.]+)", program.read_bytes())
    return f"{PROGRAM} {match.group(1).decode() if match else 'of unknown version'}"


@contextmanager
def run_server(program: Path, folder: Path | None = None) -> Iterator[dict[str, str]]:
    """Run the server with one bucket, and set the environment variables for clients.

    Yields these variables. Objects are files in `folder` or in a temporary folder.
    """
    with create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="s3-", dir=folder) as root:
        arguments = ["--port", f"127.0.0.1:{port}", "--access", "key", "--secret", "not-a-secret", "--quiet"]
        command = [str(program), *arguments, "--keep-alive", "posix", root]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_until_ready(server, port)
            variables = {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_REGION": _REGION,
                "AWS_DEFAULT_REGION": _REGION,  # boto3 reads this variable
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "not-a-secret",
                "AWS_EC2_METADATA_DISABLED": "true",
            }
            with patch.dict(os.environ, variables):
                client = boto3.Session().client("s3", config=Config(s3={"addressing_style": "path"}))
                client.create_bucket(Bucket=BUCKET)
                yield variables
        finally:
            server.terminate()
            server.wait(timeout=20)


def _wait_until_ready(server: "subprocess.Popen[bytes]", port: int) -> None:
    for _ in range(200):
        if server.poll() is not None:
            raise S3ServerError(f"the S3 server exited with status {server.returncode}")
        try:
            create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise S3ServerError("the S3 server did not open its port within 10 s")
