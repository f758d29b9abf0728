"""What the program's own policies let its nodes do, in the account that enforces them."""

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from rehearsal.adapter.account import Adapter
from rehearsal.adapter.graph import Deployment
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy
from trainyard.models.layout import CURRENT_RUN, HEAD_EVENTS, MANIFEST

Client = Callable[[str], Any]
Call = Callable[["Cluster", Client], Any]


class Cluster:
    """What a node's calls name: its own stack, and a neighbour in the same account."""

    def __init__(self, own: Deployment, neighbour: Deployment) -> None:
        self.own, self.neighbour = own.exports, neighbour.exports
        self.data, self.staging = self.own["data_bucket"], self.own["staging_bucket"]
        self.bundle = own.one("aws:s3/bucketObjectv2:BucketObjectv2", "bundle").inputs["key"]
        self.hook = own.one("aws:autoscaling/lifecycleHook:LifecycleHook", "workers-leave").id
        self._roles = {name: own.one("aws:iam/role:Role", name).id for name in ("head", "workers")}

    def node(self, role: str) -> Client:
        """Clients with the credentials that a node of this role has from its metadata service."""
        arn = f"arn:aws:iam::{ACCOUNT}:role/{self._roles[role]}"
        made = boto3.client("sts").assume_role(RoleArn=arn, RoleSessionName="i-1")["Credentials"]
        session = boto3.Session(made["AccessKeyId"], made["SecretAccessKey"], made["SessionToken"])
        return lambda service: session.client(service, config=Config(retries={"total_max_attempts": 1}))


@pytest.fixture(scope="module")
def cluster(aws: EmulatedAws, local: Deployment) -> Cluster:
    neighbour = Deploy()("neighbour", Adapter(aws.region, run_commands=False), "local")
    s3 = boto3.client("s3")
    for exports in (local.exports, neighbour.exports):
        for key in ("datasets/d/x", "runs/r-1/results/x"):
            s3.put_object(Bucket=exports["data_bucket"], Key=key, Body=b"x")
        s3.put_object(Bucket=exports["staging_bucket"], Key=f"{HEAD_EVENTS}x", Body=b"x")
    boto3.client("ssm").put_parameter(Name="/others/secret", Value="x", Type="SecureString")
    return Cluster(local, neighbour)


def get(which: str, key: str, whose: str = "own") -> Call:
    return lambda at, node: node("s3").get_object(Bucket=getattr(at, whose)[f"{which}_bucket"], Key=key)


def put(which: str, key: str, whose: str = "own") -> Call:
    return lambda at, node: node("s3").put_object(Bucket=getattr(at, whose)[f"{which}_bucket"], Key=key, Body=b"x")


def end(whose: str) -> Call:
    return lambda at, node: node("autoscaling").set_desired_capacity(
        AutoScalingGroupName=getattr(at, whose)["groups"][0], DesiredCapacity=0
    )


def leave(whose: str) -> Call:
    return lambda at, node: node("autoscaling").record_lifecycle_action_heartbeat(
        AutoScalingGroupName=getattr(at, whose)["groups"][0], LifecycleHookName=at.hook, InstanceId="i-1"
    )


def upload(at: Cluster, node: Client) -> None:
    """A checkpoint as s3torchconnector writes and commits it: parts, then a copy and a delete for the rename."""
    s3, which = node("s3"), {"Bucket": at.data, "Key": "runs/r-1/checkpoints/x"}
    for finish in (False, True):
        begun = {**which, "UploadId": s3.create_multipart_upload(**which)["UploadId"]}
        part = {"PartNumber": 1, "ETag": s3.upload_part(**begun, PartNumber=1, Body=b"x")["ETag"]}
        if finish:
            s3.complete_multipart_upload(**begun, MultipartUpload={"Parts": [part]})
        else:
            s3.abort_multipart_upload(**begun)
    s3.head_object(**which)
    s3.copy_object(Bucket=at.data, Key="runs/r-1/checkpoints/y", CopySource=which)
    s3.delete_object(**which)


MAY: dict[str, tuple[str, Call]] = {
    "worker reads the manifest": ("workers", get("staging", MANIFEST)),
    "worker reads the bundle": ("workers", lambda at, node: get("staging", at.bundle)(at, node)),
    "worker reads its data": ("workers", get("data", "datasets/d/x")),
    "worker lists its run": (
        "workers",
        lambda at, node: node("s3").list_objects_v2(Bucket=at.data, Prefix="runs/r-1/", Delimiter="/"),
    ),
    "worker sees its bucket": ("workers", lambda at, node: node("s3").head_bucket(Bucket=at.data)),
    "worker reads its run": ("workers", get("data", "runs/r-1/results/x")),
    "worker writes its run": ("workers", put("data", "runs/r-1/events/x")),
    "worker saves a checkpoint": ("workers", upload),
    "head reads the manifest": ("head", get("staging", MANIFEST)),
    "head writes its events": ("head", put("staging", f"{HEAD_EVENTS}y")),
    "head writes a run": ("head", put("data", "runs/r-1/control.json")),
    "head looks at the groups": ("head", lambda at, node: node("autoscaling").describe_auto_scaling_groups()),
    "head ends its group": ("head", end("own")),
}
MAY_NOT: dict[str, tuple[str, Call]] = {
    "worker writes data": ("workers", put("data", "datasets/d/x")),
    "worker writes the bundle": ("workers", lambda at, node: put("staging", at.bundle)(at, node)),
    "worker writes the manifest": ("workers", put("staging", MANIFEST)),
    "worker reads the head's events": ("workers", get("staging", f"{HEAD_EVENTS}x")),
    "worker reads a neighbour's run": ("workers", get("data", "runs/r-1/results/x", "neighbour")),
    "worker lists a neighbour's bucket": (
        "workers",
        lambda at, node: node("s3").list_objects_v2(Bucket=at.neighbour["data_bucket"]),
    ),
    "worker reads a neighbour's manifest": ("workers", get("staging", MANIFEST, "neighbour")),
    "worker ends its group": ("workers", end("own")),
    "worker speaks for a neighbour's node": ("workers", leave("neighbour")),
    "worker reads a secret that it was not given": (
        "workers",
        lambda at, node: node("ssm").get_parameter(Name="/others/secret", WithDecryption=True),
    ),
    "worker starts an instance": (
        "workers",
        lambda at, node: node("ec2").run_instances(ImageId="ami-1", MinCount=1, MaxCount=1),
    ),
    "head reads data": ("head", get("data", "datasets/d/x")),
    "head writes the manifest": ("head", put("staging", MANIFEST)),
    "head deletes what a run left": (
        "head",
        lambda at, node: node("s3").delete_object(Bucket=at.data, Key="runs/r-1/results/x"),
    ),
    "head writes a neighbour's run": ("head", put("data", "runs/r-1/control.json", "neighbour")),
    "head ends a neighbour's group": ("head", end("neighbour")),
}
DENIALS = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}


@pytest.mark.parametrize("case", MAY)
def test_nodes_may_what_they_need(cluster: Cluster, case: str) -> None:
    role, call = MAY[case]
    call(cluster, cluster.node(role))


def test_a_worker_is_told_that_there_is_no_run_yet(cluster: Cluster) -> None:
    with pytest.raises(ClientError, match="NoSuchKey"):
        cluster.node("workers")("s3").get_object(Bucket=cluster.staging, Key=CURRENT_RUN)


def test_a_worker_speaks_for_nodes_of_its_own_group(cluster: Cluster) -> None:
    with pytest.raises(ClientError) as caught:  # there is no such node
        leave("own")(cluster, cluster.node("workers"))
    assert caught.value.response["Error"]["Code"] == "ValidationError"


@pytest.mark.parametrize("case", MAY_NOT)
def test_nodes_may_no_more(cluster: Cluster, case: str) -> None:
    role, call = MAY_NOT[case]
    with pytest.raises(ClientError) as caught:
        call(cluster, cluster.node(role))
    assert caught.value.response["Error"]["Code"] in DENIALS
