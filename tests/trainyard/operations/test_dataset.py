"""A launch refuses data and models that are missing, empty or incomplete, before it adds a node."""

from typing import Any

import boto3
import pytest

from rehearsal.aws.process import EmulatedAws
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.test_launch import create_launch
from trainyard.models.layout import upload_key
from trainyard.operations.dataset import ensure_dataset
from trainyard.operations.errors import LaunchError

SCRIPT: dict[str, Any] = {"train": None, "command": ("train.py",), "builtin_corpus": False}


def check(cluster: clusters.Cluster) -> list[str]:
    """Check the dataset of the cluster's job. Returns the displayed lines."""
    launch, display = create_launch(cluster)
    ensure_dataset(launch.cluster, display)
    return display.lines


def create_bucket(name: str, region: str = REGION, **objects: str) -> None:
    """Create a bucket with objects."""
    s3 = boto3.client("s3", region_name=region)
    location: Any = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
    s3.create_bucket(Bucket=name, **location)
    for key, content in objects.items():
        s3.put_object(Bucket=name, Key=key, Body=content.encode())


def test_empty_dataset_of_a_custom_job_is_refused(account: EmulatedAws) -> None:
    cluster = clusters.create_cluster(REGION, **SCRIPT)
    with pytest.raises(LaunchError, match=rf"no objects: upload it \(trainyard data put FOLDER d -s {cluster.stack}\)"):
        check(cluster)


def test_incomplete_upload_is_refused(account: EmulatedAws) -> None:
    cluster = clusters.create_cluster(REGION, **SCRIPT)
    cluster.data.write("datasets/d/1.txt", b"one")
    cluster.data.write(upload_key("d"), b"")
    with pytest.raises(LaunchError, match="has not ended"):
        check(cluster)


def test_job_without_data_is_accepted(account: EmulatedAws) -> None:
    assert check(clusters.create_cluster(REGION, **SCRIPT, data_uri=None)) == ["dataset the job reads no data"]


def test_empty_prefix_of_another_bucket_is_refused(account: EmulatedAws) -> None:
    create_bucket("dataset-empty", **{"books/": ""})
    cluster = clusters.create_cluster(
        REGION, **SCRIPT, data="s3://dataset-empty/books/", data_uri="s3://dataset-empty/books/"
    )
    with pytest.raises(LaunchError, match="no objects: correct the prefix"):
        check(cluster)


def test_missing_bucket_is_refused(account: EmulatedAws) -> None:
    cluster = clusters.create_cluster(REGION, **SCRIPT, data_uri="s3://dataset-none/")
    with pytest.raises(LaunchError, match="s3://dataset-none/ cannot be read"):
        check(cluster)


def test_missing_model_is_refused(account: EmulatedAws) -> None:
    create_bucket("dataset-models", other="x")
    cluster = clusters.create_cluster(REGION, **SCRIPT, data_uri=None, model_uri="s3://dataset-models/llama/")
    with pytest.raises(LaunchError, match=r"\(job.model\) has no objects"):
        check(cluster)


def test_cost_of_a_bucket_in_another_region_is_displayed(account: EmulatedAws) -> None:
    create_bucket("dataset-abroad", "eu-west-1", **{"books/1.txt": "x" * 1000})
    (line,) = check(clusters.create_cluster(REGION, **SCRIPT, data_uri="s3://dataset-abroad/books/"))
    assert "is in eu-west-1: 0.00 GB in 1 object, 0.00 USD for each read from this region" in line


def archive_object(bucket: str, key: str) -> Any:
    s3 = boto3.client("s3", region_name=REGION)
    s3.put_object(Bucket=bucket, Key=key, Body=b"x", StorageClass="DEEP_ARCHIVE")
    return s3


def test_archived_data_is_refused_with_restore_instructions(account: EmulatedAws) -> None:
    create_bucket("dataset-archived", **{"books/1.txt": "one"})
    archive_object("dataset-archived", "books/2.txt")
    with pytest.raises(LaunchError, match=r"\(job.dataset\) is in DEEP_ARCHIVE.*aws s3api restore-object"):
        check(clusters.create_cluster(REGION, **SCRIPT, data_uri="s3://dataset-archived/books/"))


def test_restored_data_is_accepted(account: EmulatedAws) -> None:
    create_bucket("dataset-restored")
    s3 = archive_object("dataset-restored", "books/1.txt")
    s3.restore_object(Bucket="dataset-restored", Key="books/1.txt", RestoreRequest={"Days": 7})
    (line,) = check(clusters.create_cluster(REGION, **SCRIPT, data_uri="s3://dataset-restored/books/"))
    assert line == "dataset s3://dataset-restored/books/ exists"
