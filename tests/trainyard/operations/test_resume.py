"""A launch requires that the checkpoint to resume from can be read."""

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws.clients import client
from trainyard.aws.s3 import Bucket
from trainyard.models.layout import RunLayout
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.launch import Launch
from trainyard.operations.resume import require_readable_checkpoint

PREFIX = RunLayout("old").checkpoints


def put(bucket: Bucket, name: str, storage_class: str = "STANDARD") -> str:
    key = PREFIX + name
    client("s3", REGION).put_object(Bucket=bucket.name, Key=key, Body=b"x", StorageClass=storage_class)
    return key


@pytest.fixture
def archived(bucket: Bucket) -> str:
    """Write two checkpoints; the data of the newest is in Deep Archive, its small commit mark is not."""
    put(bucket, "step-00000010/.metadata")
    put(bucket, "step-00000020/.metadata")
    return put(bucket, "step-00000020/__0_0.distcp", "DEEP_ARCHIVE")


def test_archived_checkpoint_is_refused_with_restore_instructions(bucket: Bucket, archived: str) -> None:
    with pytest.raises(LaunchError) as refused:
        require_readable_checkpoint(bucket, "old")
    message = str(refused.value)
    checkpoint = f"s3://{bucket.name}/{PREFIX}step-00000020/ is in DEEP_ARCHIVE"
    assert message.startswith(f"job.resume = 'old': its newest checkpoint {checkpoint}")
    assert "12 hours (Tier=Standard) or 48 hours (Tier=Bulk)" in message
    assert f"aws s3api list-objects-v2 --bucket {bucket.name} --prefix {PREFIX}step-00000020/ " in message
    assert "--restore-request 'Days=7,GlacierJobParameters={Tier=Standard}'" in message


def test_restored_checkpoint_is_accepted(bucket: Bucket, archived: str) -> None:
    client("s3", REGION).restore_object(Bucket=bucket.name, Key=archived, RestoreRequest={"Days": 7})
    require_readable_checkpoint(bucket, "old")


def test_restore_in_progress_is_reported(bucket: Bucket, archived: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "restore_status", lambda _: 'ongoing-request="true"')
    with pytest.raises(LaunchError, match=r"is in DEEP_ARCHIVE and its restore is in progress. Launch again when"):
        require_readable_checkpoint(bucket, "old")


def test_older_checkpoint_may_be_archived(bucket: Bucket) -> None:
    put(bucket, "step-00000010/.metadata", "DEEP_ARCHIVE")
    put(bucket, "step-00000020/.metadata")
    require_readable_checkpoint(bucket, "old")


def test_newest_object_of_a_users_job_counts(bucket: Bucket) -> None:
    put(bucket, "model.pt", "GLACIER")
    with pytest.raises(LaunchError, match=r"checkpoints/model\.pt is in GLACIER"):
        require_readable_checkpoint(bucket, "old")


def test_launch_refuses_an_archived_checkpoint_before_nodes_start(account: EmulatedAws) -> None:
    cluster = clusters.create_cluster(REGION, train=None, command=("train.py",), resume="old")
    put(cluster.data, "step-00000020/.metadata", "DEEP_ARCHIVE")
    cluster.write_head_ready_events()
    with pytest.raises(LaunchError, match="is in DEEP_ARCHIVE"):
        Launch(Cluster(cluster.stack, REGION), RecordingDisplay()).start()
    assert cluster.members() == []
