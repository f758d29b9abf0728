"""A node downloads the job's model once, and again only what has changed."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest

from rehearsal.aws.process import EmulatedAws
from tests.conftest import REGION
from trainyard.node.environments import model
from trainyard.node.environments.source import EXIT_FAILED, find_error


class CountingClient:
    """An S3 client that records the downloaded keys."""

    def __init__(self, s3: Any) -> None:
        self._s3, self.keys = s3, list[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._s3, name)

    def download_file(self, bucket: str, key: str, file: str) -> None:
        self.keys.append(key)
        self._s3.download_file(bucket, key, file)


@pytest.fixture
def s3(account: EmulatedAws, request: pytest.FixtureRequest) -> CountingClient:
    client = boto3.client("s3", region_name=REGION)
    client.create_bucket(Bucket="models-of-a-test")
    for name, content in {"config.json": b"{}", "weights/1.safetensors": b"one"}.items():
        client.put_object(Bucket="models-of-a-test", Key=f"llama/{name}", Body=content)
    return CountingClient(client)


URI = "s3://models-of-a-test/llama/"


def test_model_is_downloaded_once(s3: CountingClient, tmp_path: Path) -> None:
    folder = tmp_path / "models/llama"
    assert model.fetch_model(s3, URI, folder)
    assert (folder / "weights/1.safetensors").read_bytes() == b"one"
    assert not model.fetch_model(s3, URI, folder)
    assert sorted(s3.keys) == ["llama/config.json", "llama/weights/1.safetensors"]


def test_changed_object_is_downloaded_again_and_deleted_object_removed(s3: CountingClient, tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    model.fetch_model(s3, URI, folder)
    s3.put_object(Bucket="models-of-a-test", Key="llama/config.json", Body=b"{1}")
    s3.delete_object(Bucket="models-of-a-test", Key="llama/weights/1.safetensors")
    s3.keys.clear()
    assert model.fetch_model(s3, URI, folder)
    assert s3.keys == ["llama/config.json"]
    assert not (folder / "weights/1.safetensors").exists()


def test_interrupted_download_has_no_marker(
    s3: CountingClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError("disk")

    monkeypatch.setattr(s3, "download_file", fail)
    with pytest.raises(OSError, match="disk"):
        model.fetch_model(s3, URI, tmp_path / "llama")
    assert not (tmp_path / "llama" / model.MARKER).exists()


def test_full_disk_is_an_error_before_the_download(
    s3: CountingClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1}))
    with pytest.raises(model.ModelError, match="free disk space"):
        model.fetch_model(s3, URI, tmp_path / "llama")
    assert s3.keys == []


def test_program_downloads_the_model(s3: CountingClient, tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    subprocess.run([sys.executable, model.__file__, URI, str(folder), REGION], capture_output=True, check=True)
    assert (folder / "config.json").read_text() == "{}"


def test_program_without_objects_fails_with_the_cause(s3: CountingClient, tmp_path: Path) -> None:
    command = [sys.executable, model.__file__, f"{URI}missing/", str(tmp_path / "llama"), REGION]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == EXIT_FAILED
    assert find_error(result.stderr)[0] == f"model of the job {URI}missing/: it has no objects"
