"""The bootstrap as user-data runs it: alone, from the metadata service and S3 to the bundle's own next program."""

import hashlib
import io
import json
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.aws.process import EmulatedAws
from rehearsal.hypervisor.metadata import Metadata, MetadataServer
from trainyard.aws.s3 import Bucket
from trainyard.node import bootstrap

BOOTSTRAP = Path(__file__).parents[3] / "trainyard/node/bootstrap.py"
TRUTH: dict[str, Any] = {
    "id": "i-1",
    "private_ip": "127.77.250.2",
    "instance_type": "c7i.xlarge",
    "zone": "us-east-1a",
    "image": "ami-1",
    "user_data": "",
    "role_name": "node",
    "tags": {},
    "autoscaling_group": None,
    "interrupted_time": None,
    "lifecycle_state": "InService",
}
CREDENTIALS = {
    "AccessKeyId": "AKIAEXAMPLE",
    "SecretAccessKey": "secret",
    "Token": "token",
    "Expiration": "2099-01-01T00:00:00Z",
}


@pytest.fixture
def metadata() -> Iterator[str]:
    server = MetadataServer(Metadata(lambda: TRUTH, lambda role: CREDENTIALS), socket.create_server(("127.0.0.1", 0)))
    yield server.endpoint
    server.close()


def bundle() -> bytes:
    """A bundle whose next program tells what it was handed."""
    program = b"import json, os, pathlib; print(pathlib.Path('../../node.json').read_text(), os.getcwd())"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo("trainyard/node/environments/node.py")
        entry.size = len(program)
        tar.addfile(entry, io.BytesIO(program))
    return buffer.getvalue()


def boot(root: Path, metadata: str, bucket: Bucket, account: EmulatedAws) -> "subprocess.CompletedProcess[str]":
    root.mkdir(exist_ok=True)
    manifest = f"s3://{bucket.name}/manifest.json"
    return subprocess.run(
        [sys.executable, "-I", str(BOOTSTRAP), "--role", "worker", "--region", "us-east-1", "--manifest", manifest],
        env={
            "TRAINYARD_ROOT": str(root),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata,
            "AWS_ENDPOINT_URL": account.endpoint,
        },
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def publish(bucket: Bucket, sha256: str, content: bytes) -> None:
    bucket.write("bundle.tar.gz", content)
    manifest = {"bundle": {"uri": f"s3://{bucket.name}/bundle.tar.gz", "sha256": sha256}, "later": "anything"}
    bucket.write("manifest.json", json.dumps(manifest).encode())


def test_it_hands_over_to_the_bundle(tmp_path: Path, metadata: str, bucket: Bucket, account: EmulatedAws) -> None:
    content = bundle()
    sha256 = hashlib.sha256(content).hexdigest()
    publish(bucket, sha256, content)
    done = boot(tmp_path / "root", metadata, bucket, account)
    assert done.returncode == 0, done.stderr
    node, _, folder = done.stdout.rpartition(" ")
    assert folder.strip().endswith(sha256)
    assert json.loads(node)["instance"] == "i-1"
    assert json.loads(node)["boot"] == "0001"


def test_the_same_boot_keeps_its_number(tmp_path: Path, metadata: str, bucket: Bucket, account: EmulatedAws) -> None:
    content = bundle()
    publish(bucket, hashlib.sha256(content).hexdigest(), content)
    for _ in range(2):
        done = boot(tmp_path / "root", metadata, bucket, account)
    assert '"boot": "0001"' in done.stdout
    (tmp_path / "root/opt/trainyard/boot.json").write_text('{"boot": 1, "kernel": "another"}')
    assert '"boot": "0002"' in boot(tmp_path / "root", metadata, bucket, account).stdout


def test_a_bundle_with_another_checksum_is_refused(
    tmp_path: Path, metadata: str, bucket: Bucket, account: EmulatedAws
) -> None:
    publish(bucket, "0" * 64, bundle())
    done = boot(tmp_path / "root", metadata, bucket, account)
    assert done.returncode == 1
    assert "the manifest says 000000" in done.stderr
    assert not list((tmp_path / "root/opt/trainyard").glob("bundle/*"))


def test_it_uses_nothing_but_the_standard_library() -> None:
    names = {
        line.split()[1].split(".")[0]
        for line in BOOTSTRAP.read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    assert names <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("left", "arms", "commands"),
    [
        (600.0, 0, ["systemd-run --on-active=600 systemctl poweroff"]),
        (600.0, 1, ["systemd-run --on-active=600 systemctl poweroff", "systemctl poweroff"]),
        (-1.0, 0, ["systemctl poweroff"]),
    ],
)
def test_a_machine_that_is_to_end_ends_in_any_case(
    left: float, arms: int, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def call(command: list[str]) -> int:
        called.append(" ".join(command))
        return arms if command[0] == "systemd-run" else 0

    monkeypatch.setattr(bootstrap, "ROOT", Path("/"))
    monkeypatch.setattr(subprocess, "call", call)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    bootstrap.switch_off_at(1000.0 + left)
    assert called == commands
