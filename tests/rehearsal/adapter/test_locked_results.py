"""A deployed stack with locked results and access logs: the program's bucket and roles in the emulated account."""

from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.deployment import Deployment
from rehearsal.adapter.mocks import up
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedBucket
from tests.rehearsal.adapter.conftest import ROOT
from tests.rehearsal.adapter.test_node_permissions import Cluster

RESULT, CHECKPOINT = "runs/r-1/results/model.safetensors", "runs/r-1/checkpoints/step-1/.metadata"
DAY = 86400


def deploy_locked(aws: EmulatedAws) -> Deployment:
    """Deploy the local stack with locked results and access logs."""
    aws.seed(AccountSeed(region=aws.region, buckets=(SeedBucket(name="our-logs", receives_access_logs=True),)))
    config = yaml.safe_load((ROOT / "stacks/Pulumi.local.yaml").read_text())["config"]
    config["trainyard:cluster"]["storage"] = {"lock_results_days": 30, "access_log_bucket": "our-logs"}
    return up(config, "locked", ROOT, account=EmulatedAccount(aws.region, run_commands=False))


@pytest.fixture(scope="module")
def cluster(aws: EmulatedAws) -> Cluster:
    deployment = deploy_locked(aws)
    for key in (RESULT, CHECKPOINT):
        boto3.client("s3").put_object(Bucket=deployment.exports["data_bucket"], Key=key, Body=b"x")
    return Cluster(aws, deployment, deployment)


def lock(aws: EmulatedAws, cluster: Cluster, role: str, key: str, days: float, mode: str = "GOVERNANCE") -> str | None:
    """Lock an object with the credentials of a node; return the error code, or None."""
    retention: Any = {"Mode": mode, "RetainUntilDate": datetime.fromtimestamp(aws.now() + days * DAY, UTC)}
    try:
        cluster.node(role)("s3").put_object_retention(Bucket=cluster.data, Key=key, Retention=retention)
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return None


def test_head_locks_a_result_and_no_role_deletes_it(aws: EmulatedAws, cluster: Cluster) -> None:
    assert lock(aws, cluster, "head", RESULT, 30) is None
    s3 = boto3.client("s3")
    version = s3.head_object(Bucket=cluster.data, Key=RESULT)["VersionId"]
    cluster.node("job")("s3").put_object(Bucket=cluster.data, Key=RESULT, Body=b"other")
    s3.delete_object(Bucket=cluster.data, Key=RESULT)
    for client in (s3, *(cluster.node(role)("s3") for role in ("job", "workers", "head"))):
        with pytest.raises(ClientError, match="AccessDenied"):
            client.delete_object(Bucket=cluster.data, Key=RESULT, VersionId=version)
    assert s3.get_object(Bucket=cluster.data, Key=RESULT, VersionId=version)["Body"].read() == b"x"


@pytest.mark.parametrize(
    ("role", "key", "days", "mode"),
    [
        ("job", RESULT, 1, "GOVERNANCE"),
        ("workers", RESULT, 1, "GOVERNANCE"),
        ("head", CHECKPOINT, 1, "GOVERNANCE"),
        ("head", RESULT, 40, "GOVERNANCE"),
        ("head", RESULT, 30, "COMPLIANCE"),
    ],
)
def test_nodes_lock_nothing_else(aws: EmulatedAws, cluster: Cluster, role: str, key: str, days: int, mode: str) -> None:
    assert lock(aws, cluster, role, key, days, mode) == "AccessDenied"


def test_data_bucket_has_access_logs(cluster: Cluster) -> None:
    logging = boto3.client("s3").get_bucket_logging(Bucket=cluster.data)["LoggingEnabled"]
    assert logging == {"TargetBucket": "our-logs", "TargetPrefix": "access-logs/trainyard/locked/"}
