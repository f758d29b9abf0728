"""A real S3 server on this machine for a benchmark: Versity S3 Gateway over a folder."""

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


class NoServer(Exception):
    """The program is not there. Says in one line how to get it."""


def find(given: Path | None) -> Path:
    """The server's program: the one given, or that on PATH."""
    found = given or shutil.which(PROGRAM)
    if not found or not Path(found).is_file():
        raise NoServer(f"no S3 server {given or PROGRAM}: {INSTALL}, then put it on PATH or name it with --server")
    return Path(found)


def version(program: Path) -> str:
    """As the Go toolchain has written it into the program."""
    found = re.search(rb"\tgithub\.com/versity/versitygw\t(v[0-9.]+)", program.read_bytes())
    return f"{PROGRAM} {found.group(1).decode() if found else 'of unknown version'}"


@contextmanager
def serving(program: Path, folder: Path | None = None) -> Iterator[dict[str, str]]:
    """The variables by which it is found, which are also set meanwhile, with a bucket made. Objects are files in
    `folder` or a temporary one."""
    with create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="s3-", dir=folder) as root:
        arguments = ["--port", f"127.0.0.1:{port}", "--access", "key", "--secret", "not-a-secret", "--quiet"]
        command = [str(program), *arguments, "--keep-alive", "posix", root]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait(server, port)
            variables = {
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
                "AWS_REGION": _REGION,
                "AWS_DEFAULT_REGION": _REGION,  # what boto3 reads
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


def _wait(server: "subprocess.Popen[bytes]", port: int) -> None:
    for _ in range(200):
        if server.poll() is not None:
            raise NoServer(f"the S3 server ended with status {server.returncode}")
        try:
            create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise NoServer("the S3 server did not open its port within 10 s")
