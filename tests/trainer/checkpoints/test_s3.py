"""Checkpoints in S3, with outages, archived objects and deleted objects."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from s3torchconnector._s3client import S3Client
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict_saver import save

from tests.problems import rejects
from tests.trainer.checkpoints.states import open_checkpoints, save_all, trained_state
from trainer import check_checkpoint
from trainer.checkpoints import Checkpoints, writer
from trainer.checkpoints.files import plan_read, read_metadata
from trainyard.errors import InputError

pytestmark = pytest.mark.slow


@pytest.fixture
def checkpoints(s3: Any, group: dist.ProcessGroup, request: pytest.FixtureRequest) -> Iterator[Checkpoints]:
    with open_checkpoints(f"s3://runs/{request.node.originalname}/", group) as checkpoints:
        yield checkpoints


def test_saved_state_is_loaded(checkpoints: Checkpoints) -> None:
    first, loaded = trained_state(3), trained_state(1)
    (uri,) = save_all(checkpoints, first)
    assert checkpoints.resume(loaded) == uri
    for parameter, reference in zip(loaded.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(parameter, reference)
    assert check_checkpoint.check(uri)["step"] == 3


def test_bytes_between_large_entries_are_not_fetched(checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second large entry is read, as if other ranks read the others: the other entries are not fetched."""
    (uri,) = save_all(checkpoints, trained_state(3, width=512))
    metadata = read_metadata(uri)
    lengths = {index.fqn: info.length for index, info in metadata.storage_data.items() if info.length > 2**20}
    names = sorted(lengths, key=lambda name: metadata.storage_data[MetadataIndex(name, [0, 0])].offset)[::2]
    fetched: list[int] = []
    original = S3Client._get_object_stream

    def stream(self: S3Client, bucket: str, key: str, start: int, end: int) -> Any:
        fetched.append(end - start)
        return original(self, bucket, key, start, end)

    monkeypatch.setattr(S3Client, "_get_object_stream", stream)
    known: Any = metadata.state_dict_metadata
    content = {name: torch.empty(known[name].size) for name in names}
    plan_read(content, uri, metadata).read()
    assert len(names) > 3
    assert sum(fetched) == sum(lengths[name] for name in names)


def test_save_succeeds_after_an_outage_of_20_seconds(
    checkpoints: Checkpoints, moto_server: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The outage starts during a save. The connector's own retries end before it does: the whole save is retried."""
    _, port = moto_server.get_host_and_port()

    def restart() -> None:
        moto_server._port = port  # the same server: its state is in this process
        moto_server.start()

    timer = threading.Timer(20, restart)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        if not timer.is_alive() and timer.ident is None:
            moto_server.stop()
            timer.start()
        return save(*args, **kwargs)

    monkeypatch.setattr(writer, "save", interrupted)
    try:
        uri = checkpoints.save(trained_state(3))
        checkpoints.wait_for_staging()
        assert checkpoints.poll() == [], "the save is in progress"
        assert checkpoints.wait() == [uri]
    finally:
        timer.join()
    assert "; retrying in 2 s" in caplog.text
    assert check_checkpoint.check(uri)["step"] == 3


def test_missing_bucket_is_rejected(s3: Any) -> None:
    with rejects("bucket_missing", "s3://nowhere/x/"):
        check_checkpoint.check("s3://nowhere/x/")


def test_checkpoint_with_a_deleted_object_is_skipped(
    checkpoints: Checkpoints, s3: Any, caplog: pytest.LogCaptureFixture
) -> None:
    older, newest = save_all(checkpoints, trained_state(2), trained_state(3))
    s3.delete_object(Bucket="runs", Key=f"{newest.removeprefix('s3://runs/')}__0_0.distcp")
    assert checkpoints.resume(trained_state(1)) == older
    assert f"skipping checkpoint {newest}, which is damaged: __0_0.distcp does not exist" in caplog.text


@pytest.mark.parametrize("object_", [".metadata", "__0_0.distcp"])
def test_archived_checkpoint_raises_input_error_without_retries(
    checkpoints: Checkpoints, s3: Any, object_: str
) -> None:
    (uri,) = save_all(checkpoints, trained_state(3))
    key = uri.removeprefix("s3://runs/") + object_
    s3.copy_object(Bucket="runs", Key=key, CopySource=f"runs/{key}", StorageClass="DEEP_ARCHIVE")
    with pytest.raises(InputError) as raised:
        checkpoints.resume(trained_state(1))
    assert f"{raised.value}".startswith(
        f"checkpoint = '{uri}': S3 has moved it to an archive class such as Deep Archive"
    )
    assert "\n" not in f"{raised.value}"
    s3.delete_object(Bucket="runs", Key=key)
