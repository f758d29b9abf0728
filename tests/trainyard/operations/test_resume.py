"""A checkpoint to resume from that can't be read is refused before nodes are paid for."""

import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import Recorder
from trainyard.aws.s3 import Bucket, client
from trainyard.models.layout import RunLayout
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.launch import Launch
from trainyard.operations.resume import require_checkpoint

PREFIX = RunLayout("old").checkpoints


def put(bucket: Bucket, name: str, storage_class: str = "STANDARD") -> str:
    key = PREFIX + name
    client("s3", REGION).put_object(Bucket=bucket.name, Key=key, Body=b"x", StorageClass=storage_class)
    return key


@pytest.fixture
def archived(bucket: Bucket) -> str:
    """The newest checkpoint's data is in Deep Archive; a rule leaves small objects, as its mark, where they are."""
    put(bucket, "step-00000010/.metadata")
    put(bucket, "step-00000020/.metadata")
    return put(bucket, "step-00000020/__0_0.distcp", "DEEP_ARCHIVE")


def test_an_archived_checkpoint_is_refused_with_the_way_back(bucket: Bucket, archived: str) -> None:
    with pytest.raises(LaunchError) as refused:
        require_checkpoint(bucket, "old")
    told = str(refused.value)
    where = f"s3://{bucket.name}/{PREFIX}step-00000020/ is in DEEP_ARCHIVE, from where no job can read it"
    assert told.startswith(f"job.resume = 'old': its newest checkpoint {where}")
    assert "12 hours (Tier=Standard) or 48 (Tier=Bulk)" in told
    assert f"aws s3api list-objects-v2 --bucket {bucket.name} --prefix {PREFIX}step-00000020/ " in told
    assert "--restore-request 'Days=7,GlacierJobParameters={Tier=Standard}'" in told


def test_a_restored_checkpoint_can_be_read(bucket: Bucket, archived: str) -> None:
    client("s3", REGION).restore_object(Bucket=bucket.name, Key=archived, RestoreRequest={"Days": 7})
    require_checkpoint(bucket, "old")


def test_a_checkpoint_on_its_way_back_is_told_as_that(
    bucket: Bucket, archived: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "restore_of", lambda _: 'ongoing-request="true"')
    with pytest.raises(LaunchError, match=r"is in DEEP_ARCHIVE and on its way back; launch again when"):
        require_checkpoint(bucket, "old")


def test_an_older_checkpoint_may_be_archived(bucket: Bucket) -> None:
    put(bucket, "step-00000010/.metadata", "DEEP_ARCHIVE")
    put(bucket, "step-00000020/.metadata")
    require_checkpoint(bucket, "old")


def test_of_a_users_job_what_was_written_last_counts(bucket: Bucket) -> None:
    put(bucket, "model.pt", "GLACIER")
    with pytest.raises(LaunchError, match=r"checkpoints/model\.pt is in GLACIER"):
        require_checkpoint(bucket, "old")


def test_a_launch_refuses_it_before_any_node(account: EmulatedAws) -> None:
    cluster = clusters.build(REGION, train=None, command=("train.py",), resume="old")
    put(cluster.data, "step-00000020/.metadata", "DEEP_ARCHIVE")
    cluster.head_is_ready()
    with pytest.raises(LaunchError, match="is in DEEP_ARCHIVE"):
        Launch(Cluster(cluster.stack, REGION), Recorder()).go()
    assert cluster.members() == []
