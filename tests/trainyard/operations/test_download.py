"""Download of checkpoints and results."""

import os
import time
from pathlib import Path

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws.clients import client
from trainyard.aws.s3 import Bucket, StoredObject
from trainyard.errors import InputError
from trainyard.models.layout import RunLayout
from trainyard.operations.cluster import Cluster
from trainyard.operations.download import download
from trainyard.operations.runs import DownloadedResults, download_results

PREFIX = "runs/a/results/"


def fetch(bucket: Bucket, folder: Path, display: RecordingDisplay | None = None) -> tuple[str, ...]:
    return download(bucket, bucket.objects(PREFIX), PREFIX, folder, display or RecordingDisplay())


def code(error: InputError) -> str:
    return error.problems[0].code


def test_files_are_in_the_folders_of_their_keys(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write(f"{PREFIX}a/b/file", b"content")
    assert fetch(bucket, tmp_path / "new") == ("a/b/file",)
    assert (tmp_path / "new/a/b/file").read_bytes() == b"content"


def test_interrupted_download_continues_with_the_missing_files(bucket: Bucket, tmp_path: Path) -> None:
    for name in ("one", "two"):
        bucket.write(f"{PREFIX}{name}", b"content")
    fetch(bucket, tmp_path)
    (tmp_path / "two").unlink()
    present = (tmp_path / "one").stat()
    display = RecordingDisplay()
    assert fetch(bucket, tmp_path, display) == ("one", "two")
    assert display.lines[0] == f"download 1 file, 7 bytes, to {tmp_path}, 1 file present"
    assert ((tmp_path / "one").stat().st_ino, (tmp_path / "two").read_bytes()) == (present.st_ino, b"content")


def test_changed_object_is_downloaded_again(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write(f"{PREFIX}file", b"earlier")
    fetch(bucket, tmp_path)
    os.utime(tmp_path / "file", (1.0, 1.0))  # as if the object had been written later
    bucket.write(f"{PREFIX}file", b"changed")
    fetch(bucket, tmp_path)
    assert (tmp_path / "file").read_bytes() == b"changed"


def test_large_file_has_its_content_and_its_progress_is_reported(bucket: Bucket, tmp_path: Path) -> None:
    content = os.urandom(20_000_000)  # several parts
    bucket.write(f"{PREFIX}file", content)
    display = RecordingDisplay()
    fetch(bucket, tmp_path, display)
    assert (tmp_path / "file").read_bytes() == content
    assert display.details[-1] == "download 20.0 MB of 20.0 MB"


def test_name_outside_of_the_folder_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    stored = StoredObject(f"{PREFIX}../../escaped", "STANDARD", time.time(), 1)
    with pytest.raises(InputError) as refused:
        download(bucket, [stored], PREFIX, tmp_path / "folder", RecordingDisplay())
    assert code(refused.value) == "unsafe_name"


def test_archived_object_is_refused_with_restore_instructions(bucket: Bucket, tmp_path: Path) -> None:
    s3 = client("s3", REGION)
    s3.put_object(Bucket=bucket.name, Key=f"{PREFIX}file", Body=b"x", StorageClass="DEEP_ARCHIVE")
    with pytest.raises(InputError, match=f"download again within the 7 days .* --prefix {PREFIX}file ") as refused:
        fetch(bucket, tmp_path)
    assert code(refused.value) == "archived"


def test_download_that_is_larger_than_the_disk_is_refused(bucket: Bucket, tmp_path: Path) -> None:
    stored = StoredObject(f"{PREFIX}file", "STANDARD", time.time(), 10**18)
    with pytest.raises(InputError) as refused:
        download(bucket, [stored], PREFIX, tmp_path, RecordingDisplay())
    assert code(refused.value) == "disk_full"


class Run:
    """A run of a custom job with two checkpoints, and a third that has the name of the second as its start."""

    def __init__(self) -> None:
        self.cluster = clusters.create_cluster(REGION, train=None, command=("train.py",))
        record = self.cluster.create_run_record()
        layout, data = RunLayout(record.run), self.cluster.data
        data.write(layout.record, record.model_dump_json().encode())
        for name in ("epoch-1.pt", "epoch-1.pt.optimizer", "epoch-2/model.bin"):
            data.write(f"{layout.checkpoints}{name}", name.encode())
        data.write(f"{layout.results}line.json", b"{}")

    def download(self, folder: Path, checkpoint: str) -> DownloadedResults:
        cluster = Cluster(self.cluster.stack, REGION)
        return download_results(cluster, None, folder, RecordingDisplay(), checkpoint)


@pytest.fixture
def run(account: EmulatedAws) -> Run:
    return Run()


def test_newest_checkpoint_is_downloaded(run: Run, tmp_path: Path) -> None:
    assert run.download(tmp_path, "newest").files == ("line.json", "checkpoints/epoch-2/model.bin")
    assert (tmp_path / "checkpoints/epoch-2/model.bin").read_bytes() == b"epoch-2/model.bin"


def test_checkpoint_that_is_a_file_is_downloaded_alone(run: Run, tmp_path: Path) -> None:
    assert run.download(tmp_path, "epoch-1.pt").files == ("line.json", "checkpoints/epoch-1.pt")


def test_unknown_checkpoint_is_refused_before_the_download(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Did you mean epoch-1\.pt") as refused:
        run.download(tmp_path, "epoch1.pt")
    assert code(refused.value) == "unknown_checkpoint"
    assert list(tmp_path.iterdir()) == []
