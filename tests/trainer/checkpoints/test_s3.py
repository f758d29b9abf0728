"""Checkpoints in S3, which goes away, archives, and loses objects."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from s3torchconnector._s3client import S3Client
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict_saver import save

from tests.trainer.checkpoints.states import place, saved, state_after
from trainer import check
from trainer.checkpoints import Checkpoints, writer
from trainer.checkpoints.files import read_metadata, reading
from trainyard.base import InputError


@pytest.fixture
def here(s3: Any, group: dist.ProcessGroup, request: pytest.FixtureRequest) -> Iterator[Checkpoints]:
    with place(f"s3://runs/{request.node.originalname}/", group) as checkpoints:
        yield checkpoints


def test_what_was_saved_is_loaded(here: Checkpoints) -> None:
    first, loaded = state_after(3), state_after(1)
    (uri,) = saved(here, first)
    assert here.resume(loaded) == uri
    for mine, theirs in zip(loaded.model.parameters(), first.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert check.check(uri)["step"] == 3


def test_what_lies_between_is_left_there(here: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every second large entry, as where other ranks read the others, no more is fetched than that."""
    (uri,) = saved(here, state_after(3, width=512))
    metadata = read_metadata(uri)
    lengths = {index.fqn: info.length for index, info in metadata.storage_data.items() if info.length > 2**20}
    wanted = sorted(lengths, key=lambda name: metadata.storage_data[MetadataIndex(name, [0, 0])].offset)[::2]
    fetched: list[int] = []
    real = S3Client._get_object_stream

    def stream(self: S3Client, bucket: str, key: str, start: int, end: int) -> Any:
        fetched.append(end - start)
        return real(self, bucket, key, start, end)

    monkeypatch.setattr(S3Client, "_get_object_stream", stream)
    known: Any = metadata.state_dict_metadata
    content = {name: torch.empty(known[name].size) for name in wanted}
    reading(content, uri, metadata).read()
    assert len(wanted) > 3
    assert sum(fetched) == sum(lengths[name] for name in wanted)


def test_a_save_outlives_an_outage_of_20_s(
    here: Checkpoints, moto_server: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """S3 goes in the middle of a save. The connector gives up long before it is back: the whole save is tried again."""
    _, port = moto_server.get_host_and_port()

    def back() -> None:
        moto_server._port = port  # the same server again: its state is this process's
        moto_server.start()

    timer = threading.Timer(20, back)

    def interrupted(*given: Any, **more: Any) -> Any:
        if not timer.is_alive() and timer.ident is None:
            moto_server.stop()
            timer.start()
        return save(*given, **more)

    monkeypatch.setattr(writer, "save", interrupted)
    try:
        uri = here.save(state_after(3))
        here.before_update()
        assert here.poll() == [], "training goes on"
        assert here.wait() == [uri]
    finally:
        timer.join()
    assert "; again in 2 s" in capfd.readouterr().out
    assert check.check(uri)["step"] == 3


def test_a_bucket_that_is_not_there_is_told(s3: Any) -> None:
    with pytest.raises(InputError, match=r"s3://nowhere/x/'?: there is no such bucket"):
        check.check("s3://nowhere/x/")


def test_a_lost_object_is_passed_over(here: Checkpoints, s3: Any, capsys: pytest.CaptureFixture[str]) -> None:
    older, newest = saved(here, state_after(2), state_after(3))
    s3.delete_object(Bucket="runs", Key=f"{newest.removeprefix('s3://runs/')}__0_0.distcp")
    assert here.resume(state_after(1)) == older
    assert f"{newest} is damaged and passed over: __0_0.distcp is not there" in capsys.readouterr().out


@pytest.mark.parametrize("object_", [".metadata", "__0_0.distcp"])
def test_a_checkpoint_that_s3_has_archived_is_told_at_once(here: Checkpoints, s3: Any, object_: str) -> None:
    (uri,) = saved(here, state_after(3))
    key = uri.removeprefix("s3://runs/") + object_
    s3.copy_object(Bucket="runs", Key=key, CopySource=f"runs/{key}", StorageClass="DEEP_ARCHIVE")
    with pytest.raises(InputError) as told:
        here.resume(state_after(1))
    assert f"{told.value}".startswith(f"checkpoint = '{uri}': S3 has moved it to an archive class such as Deep Archive")
    assert "\n" not in f"{told.value}"
    s3.delete_object(Bucket="runs", Key=key)
