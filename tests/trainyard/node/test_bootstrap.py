"""The bootstrap as user data runs it: from the metadata service and S3 to the next program of the bundle."""

import hashlib
import io
import json
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rehearsal.aws.process import ACCOUNT, EmulatedAws
from rehearsal.hypervisor.metadata import InstanceMetadata, MetadataServer
from trainyard.aws.s3 import Bucket
from trainyard.node import bootstrap

BOOTSTRAP = Path(__file__).parents[3] / "trainyard/node/bootstrap.py"
INSTANCE: dict[str, Any] = {
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


@pytest.fixture
def metadata(node_credentials: dict[str, str]) -> Iterator[str]:
    server = MetadataServer(
        InstanceMetadata(lambda: INSTANCE, lambda role: node_credentials), socket.create_server(("127.0.0.1", 0))
    )
    yield server.endpoint
    server.close()


def create_bundle() -> bytes:
    """A bundle whose next program prints the node's identity and its working directory."""
    program = b"import json, os, pathlib; print(pathlib.Path('../../node.json').read_text(), os.getcwd())"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("trainyard/node/environments/node.py")
        entry.size = len(program)
        tar.addfile(entry, io.BytesIO(program))
    return buffer.getvalue()


def start_boot(
    root: Path, metadata: str, bucket: Bucket, account: EmulatedAws, owner: str = ACCOUNT
) -> "subprocess.Popen[str]":
    boot_id = root / "proc/sys/kernel/random/boot_id"
    boot_id.parent.mkdir(parents=True, exist_ok=True)
    boot_id.write_text("7f4b\n")
    manifest = f"s3://{bucket.name}/manifest.json"
    arguments = ["--role", "worker", "--region", "us-east-1", "--manifest", manifest, "--account", owner]
    return subprocess.Popen(
        [sys.executable, "-I", str(BOOTSTRAP), *arguments],
        env={
            "TRAINYARD_ROOT": str(root),
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": metadata,
            "AWS_ENDPOINT_URL": account.endpoint,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def boot(root: Path, metadata: str, bucket: Bucket, account: EmulatedAws) -> "subprocess.CompletedProcess[str]":
    with start_boot(root, metadata, bucket, account) as process:
        output, errors = process.communicate(timeout=30)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def publish(bucket: Bucket, sha256: str, content: bytes) -> None:
    bucket.write("bundle.tar", content)
    manifest = {"bundle": {"uri": f"s3://{bucket.name}/bundle.tar", "sha256": sha256}, "unknown": "anything"}
    bucket.write("manifest.json", json.dumps(manifest).encode())


def test_bootstrap_starts_the_next_program_of_the_bundle(
    tmp_path: Path, metadata: str, bucket: Bucket, account: EmulatedAws
) -> None:
    content = create_bundle()
    sha256 = hashlib.sha256(content).hexdigest()
    publish(bucket, sha256, content)
    result = boot(tmp_path / "root", metadata, bucket, account)
    assert result.returncode == 0, result.stderr
    node, _, folder = result.stdout.rpartition(" ")
    assert folder.strip().endswith(sha256)
    assert json.loads(node)["instance"] == "i-1"
    assert json.loads(node)["boot"] == "0001"


def test_boot_number_counts_boots_not_starts(
    tmp_path: Path, metadata: str, bucket: Bucket, account: EmulatedAws
) -> None:
    content = create_bundle()
    publish(bucket, hashlib.sha256(content).hexdigest(), content)
    for _ in range(2):
        result = boot(tmp_path / "root", metadata, bucket, account)
    assert '"boot": "0001"' in result.stdout
    (tmp_path / "root/opt/trainyard/boot.json").write_text('{"boot": 1, "boot_id": "another"}')
    assert '"boot": "0002"' in boot(tmp_path / "root", metadata, bucket, account).stdout


def test_bundle_with_wrong_checksum_is_rejected(
    tmp_path: Path, metadata: str, bucket: Bucket, account: EmulatedAws
) -> None:
    publish(bucket, "0" * 64, create_bundle())
    result = boot(tmp_path / "root", metadata, bucket, account)
    assert result.returncode == 1
    assert "but the manifest has 000000" in result.stderr
    assert not list((tmp_path / "root/opt/trainyard").glob("bundle/*"))


def test_manifest_of_a_bucket_of_another_account_is_not_read(
    tmp_path: Path, metadata: str, bucket: Bucket, account: EmulatedAws
) -> None:
    """A bucket that was deleted may exist again, with this name in another account."""
    content = create_bundle()
    publish(bucket, hashlib.sha256(content).hexdigest(), content)
    with start_boot(tmp_path / "root", metadata, bucket, account, "999999999999") as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        process.kill()
    assert "waiting for the manifest: HTTPError: HTTP Error 403" in line
    assert not (tmp_path / "root/opt/trainyard/fetched.json").exists()


def test_bundle_of_a_bucket_of_another_account_is_not_read(
    tmp_path: Path, metadata: str, bucket: Bucket, account: EmulatedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", account.endpoint)
    monkeypatch.setattr(bootstrap, "METADATA", metadata)
    bucket.write("bundle.tar", b"x")
    uri = f"s3://{bucket.name}/bundle.tar"
    assert bootstrap.s3_get(uri, "us-east-1", ACCOUNT) == b"x"
    with pytest.raises(urllib.error.HTTPError, match="403"):
        bootstrap.s3_get(uri, "us-east-1", "999999999999")


def test_bootstrap_imports_only_the_standard_library() -> None:
    names = {
        line.split()[1].split(".")[0]
        for line in BOOTSTRAP.read_text().splitlines()
        if line.startswith(("import ", "from "))
    }
    assert names <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("remaining_seconds", "exit_code", "commands"),
    [
        (600.0, 0, ["systemd-run --on-active=600 systemctl poweroff"]),
        (600.0, 1, ["systemd-run --on-active=600 systemctl poweroff", "systemctl poweroff"]),
        (-1.0, 0, ["systemctl poweroff"]),
    ],
)
def test_poweroff_is_scheduled_or_immediate(
    remaining_seconds: float, exit_code: int, commands: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def call(command: list[str]) -> int:
        calls.append(" ".join(command))
        return exit_code if command[0] == "systemd-run" else 0

    monkeypatch.setattr(bootstrap, "ROOT", Path("/"))
    monkeypatch.setattr(subprocess, "call", call)
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    bootstrap.schedule_poweroff(1000.0 + remaining_seconds)
    assert calls == commands


def test_untrusted_certificate_of_s3_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "DEADLINE_SECONDS", -1)

    def call() -> None:
        raise OSError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")

    with pytest.raises(bootstrap.BootstrapError, match="use an image whose system certificates include the CA"):
        bootstrap.retry("the manifest", call)
