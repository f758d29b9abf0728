"""`control.json`: written by one controller only."""

import pytest

from trainyard.aws.s3 import Bucket, ObjectChangedError
from trainyard.models.run import Control
from trainyard.node.controller.control_file import ControlFile

KEY = "runs/r/control.json"


class LossyBucket(Bucket):
    """A bucket that stores an object, and loses the response, while `loses` is set."""

    loses = False

    def replace(self, key: str, content: bytes, etag: str | None) -> str:
        new = super().replace(key, content, etag)
        if self.loses:
            raise TimeoutError
        return new


def test_changes_of_one_controller_are_written(bucket: Bucket) -> None:
    first = ControlFile(bucket, KEY)
    assert first.read() is None
    first.write(Control(attempt=1))
    restarted = ControlFile(bucket, KEY)
    assert restarted.read() == Control(attempt=1)
    restarted.write(Control(attempt=2))
    restarted.write(Control(attempt=3))
    assert ControlFile(bucket, KEY).read() == Control(attempt=3)


def test_change_of_another_controller_is_not_overwritten(bucket: Bucket) -> None:
    old, new = ControlFile(bucket, KEY), ControlFile(bucket, KEY)
    old.write(Control(attempt=1))
    new.read()
    new.write(Control(attempt=2))
    for _ in range(2):
        with pytest.raises(ObjectChangedError):
            old.write(Control(attempt=1, stop=True))
    assert new.read() == Control(attempt=2)
    old.read()
    old.write(Control(attempt=3))


def test_file_of_another_controller_is_not_created_again(bucket: Bucket) -> None:
    first, second = ControlFile(bucket, KEY), ControlFile(bucket, KEY)
    first.write(Control(attempt=1))
    with pytest.raises(ObjectChangedError):
        second.write(Control())


def test_write_continues_after_a_lost_response_and_a_refused_request(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lossy = LossyBucket(bucket.name, "us-east-1")
    file = ControlFile(lossy, KEY)
    lossy.loses = True
    with pytest.raises(TimeoutError):
        file.write(Control(attempt=1))
    lossy.loses = False
    with monkeypatch.context() as patch:
        patch.setattr(lossy, "replace", lambda *_: (_ for _ in ()).throw(TimeoutError()))
        with pytest.raises(TimeoutError):
            file.write(Control(attempt=2))
    file.write(Control(attempt=3))
    assert ControlFile(bucket, KEY).read() == Control(attempt=3)


def test_write_continues_after_a_lost_response(bucket: Bucket) -> None:
    lossy = LossyBucket(bucket.name, "us-east-1")
    file = ControlFile(lossy, KEY)
    for attempt in (1, 2):
        lossy.loses = True
        with pytest.raises(TimeoutError):
            file.write(Control(attempt=attempt))
        lossy.loses = False
        file.write(Control(attempt=attempt, stop=True))
        assert ControlFile(bucket, KEY).read() == Control(attempt=attempt, stop=True)
    lossy.loses = True
    with pytest.raises(TimeoutError):
        file.write(Control(attempt=3))
    lossy.loses = False
    file.write(Control(attempt=3))
    assert ControlFile(bucket, KEY).read() == Control(attempt=3)
