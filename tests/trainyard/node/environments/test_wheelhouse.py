"""Download of wheels from S3: each wheel once."""

from pathlib import Path

import pytest

from rehearsal.aws.process import EmulatedAws
from tests.conftest import REGION
from trainyard.aws.s3 import Bucket
from trainyard.node import bootstrap
from trainyard.node.environments import wheelhouse


@pytest.fixture(autouse=True)
def node(tmp_path: Path, node_credentials: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheelhouse, "BASE", tmp_path)
    monkeypatch.setattr(bootstrap, "credentials", lambda: node_credentials)


def test_all_packages_under_the_prefix_are_downloaded(bucket: Bucket, account: EmulatedAws) -> None:
    for name in ("a-1.whl", "b 2.tar.gz", "index.html"):
        bucket.write(f"mirror/{name}", name.encode())
    bucket.write("other/c.whl", b"c")
    folder = wheelhouse.fetch(f"s3://{bucket.name}/mirror/", REGION)
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        "a-1.whl": "a-1.whl",
        "b 2.tar.gz": "b 2.tar.gz",
    }


def test_all_pages_are_listed(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1100):
        bucket.write(f"{number:04d}.whl", b"")
    assert len(list(wheelhouse.list_packages(f"s3://{bucket.name}/", REGION))) == 1100


def test_existing_file_of_equal_size_is_not_downloaded_again(bucket: Bucket, account: EmulatedAws) -> None:
    bucket.write("w/a.whl", b"one")
    folder = wheelhouse.fetch(f"s3://{bucket.name}/w/", REGION)
    (folder / "a.whl").write_bytes(b"two")
    wheelhouse.fetch(f"s3://{bucket.name}/w/", REGION)
    assert (folder / "a.whl").read_bytes() == b"two"


def test_empty_prefix_is_an_error(bucket: Bucket) -> None:
    with pytest.raises(bootstrap.BootstrapError, match="contains no packages: upload them"):
        wheelhouse.fetch(f"s3://{bucket.name}/w/", REGION)
