"""The permissions of nodes: the program's IAM policies, enforced by the emulated account."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from rehearsal.adapter.account import EmulatedAccount
from rehearsal.adapter.deployment import Deployment
from rehearsal.aws.process import ACCOUNT, EmulatedAws
from tests.rehearsal.adapter.conftest import Deploy
from trainyard.models.layout import (
    BAKE_EVENTS,
    CONTROLLER_ENDPOINT,
    CURRENT_RUN,
    HEAD_EVENTS,
    MANIFEST,
    job_source_key,
)

Client = Callable[[str], Any]
Call = Callable[["Cluster", Client], Any]


class Cluster:
    """Resources of the nodes' stack, and of the stack of the same name of another Pulumi project in the account."""

    def __init__(self, aws: EmulatedAws, deployment: Deployment, other: Deployment) -> None:
        self._aws = aws
        stack = [{"Name": "tag:trainyard:stack", "Values": [f"trainyard/{deployment.stack}"]}]
        (reservation,) = boto3.client("ec2").describe_instances(Filters=stack)["Reservations"]
        self._instance = reservation["Instances"][0]["InstanceId"]
        self.exports, self.other_exports = deployment.exports, other.exports
        self.data, self.staging = self.exports["data_bucket"], self.exports["staging_bucket"]
        self.bundle = deployment.resource("aws:s3/bucketObjectv2:BucketObjectv2", "archives-bundle").inputs["key"]
        self.hook = deployment.resource("aws:autoscaling/lifecycleHook:LifecycleHook", "workers-drain").id
        self.roles = {
            name: deployment.resource("aws:iam/role:Role", f"identity-{name}").id for name in ("head", "workers", "job")
        }

    def role_name(self, role: str) -> str:
        """Return the name of the role of head, workers or job."""
        return self.roles[role]

    def node(self, role: str, *, on_node: bool = True) -> Client:
        """Return clients with the credentials that a node of this role gets from its metadata service.

        The node is an instance in the stack's private subnet. `on_node`: whether the clients run on it, or elsewhere.
        """
        arn = f"arn:aws:iam::{ACCOUNT}:role/{self.roles[role]}"
        created = boto3.client("sts").assume_role(RoleArn=arn, RoleSessionName=self._instance)["Credentials"]
        session = boto3.Session(created["AccessKeyId"], created["SecretAccessKey"], created["SessionToken"])
        endpoint = self._aws.node_endpoint if on_node else self._aws.endpoint
        config = Config(retries={"total_max_attempts": 1})
        return lambda service: session.client(service, endpoint_url=endpoint, config=config)


@pytest.fixture(scope="module")
def cluster(aws: EmulatedAws, local: Deployment) -> Cluster:
    other = Deploy(project="other")("shared", EmulatedAccount(aws.region, run_commands=False), "local")
    s3 = boto3.client("s3")
    for exports in (local.exports, other.exports):
        for key in ("datasets/d/x", "runs/r-1/results/x"):
            s3.put_object(Bucket=exports["data_bucket"], Key=key, Body=b"x")
        s3.put_object(Bucket=exports["staging_bucket"], Key=f"{HEAD_EVENTS}x", Body=b"x")
    boto3.client("ssm").put_parameter(Name="/other/secret", Value="x", Type="SecureString")
    return Cluster(aws, local, other)


def get(bucket: str, key: str, stack: str = "exports") -> Call:
    return lambda cluster, node: node("s3").get_object(Bucket=getattr(cluster, stack)[f"{bucket}_bucket"], Key=key)


def put(bucket: str, key: str, stack: str = "exports") -> Call:
    return lambda cluster, node: node("s3").put_object(
        Bucket=getattr(cluster, stack)[f"{bucket}_bucket"], Key=key, Body=b"x"
    )


def set_capacity(stack: str) -> Call:
    return lambda cluster, node: node("autoscaling").set_desired_capacity(
        AutoScalingGroupName=getattr(cluster, stack)["groups"][0], DesiredCapacity=0
    )


def put_lease(**sizes: int) -> Call:
    return lambda cluster, node: node("autoscaling").put_scheduled_update_group_action(
        AutoScalingGroupName=cluster.exports["groups"][0],
        ScheduledActionName="trainyard-lease",
        StartTime=datetime.now(UTC) + timedelta(hours=1),
        DesiredCapacity=0,
        **sizes,
    )


def send_heartbeat(stack: str) -> Call:
    return lambda cluster, node: node("autoscaling").record_lifecycle_action_heartbeat(
        AutoScalingGroupName=getattr(cluster, stack)["groups"][0], LifecycleHookName=cluster.hook, InstanceId="i-1"
    )


def complete_hook(cluster: Cluster, node: Client) -> None:
    """Complete the lifecycle action of a node, the caller's or another: IAM has no condition for it."""
    node("autoscaling").complete_lifecycle_action(
        AutoScalingGroupName=cluster.exports["groups"][0],
        LifecycleHookName=cluster.hook,
        InstanceId="i-1",
        LifecycleActionResult="CONTINUE",
    )


def upload(cluster: Cluster, node: Client) -> None:
    """Write a checkpoint as s3torchconnector does: parts, then a copy and a deletion to rename the object."""
    s3, target = node("s3"), {"Bucket": cluster.data, "Key": "runs/r-1/checkpoints/x"}
    for complete in (False, True):
        upload_id = {**target, "UploadId": s3.create_multipart_upload(**target)["UploadId"]}
        part = {"PartNumber": 1, "ETag": s3.upload_part(**upload_id, PartNumber=1, Body=b"x")["ETag"]}
        if complete:
            s3.complete_multipart_upload(**upload_id, MultipartUpload={"Parts": [part]})
        else:
            s3.abort_multipart_upload(**upload_id)
    s3.head_object(**target)
    s3.copy_object(Bucket=cluster.data, Key="runs/r-1/checkpoints/y", CopySource=target)
    s3.delete_object(**target)


ALLOWED: dict[str, tuple[str, Call]] = {
    "worker reads the manifest": ("workers", get("staging", MANIFEST)),
    "worker reads the bundle": ("workers", lambda cluster, node: get("staging", cluster.bundle)(cluster, node)),
    "worker reads its data": ("workers", get("data", "datasets/d/x")),
    "worker lists its run": (
        "workers",
        lambda cluster, node: node("s3").list_objects_v2(Bucket=cluster.data, Prefix="runs/r-1/", Delimiter="/"),
    ),
    "worker requests its bucket's metadata": (
        "workers",
        lambda cluster, node: node("s3").head_bucket(Bucket=cluster.data),
    ),
    "job reads its run": ("job", get("data", "runs/r-1/results/x")),
    "worker writes its run": ("workers", put("data", "runs/r-1/events/x")),
    "job saves a checkpoint": ("job", upload),
    "head reads the manifest": ("head", get("staging", MANIFEST)),
    "head writes its events": ("head", put("staging", f"{HEAD_EVENTS}y")),
    "head writes a run": ("head", put("data", "runs/r-1/control.json")),
    "head describes the groups": ("head", lambda cluster, node: node("autoscaling").describe_auto_scaling_groups()),
    "head scales its group to zero": ("head", set_capacity("exports")),
    "head renews the lease": ("head", put_lease(MinSize=0)),
}
DENIED: dict[str, tuple[str, Call]] = {
    "head raises the maximum size": ("head", put_lease(MinSize=0, MaxSize=100)),
    "head raises the minimum size": ("head", put_lease(MinSize=1)),
    "head writes a run record": ("head", put("data", "runs/r-1/run.json")),
    "worker writes a run record": ("workers", put("data", "runs/r-1/run.json")),
    "worker writes control objects": ("workers", put("data", "runs/r-1/control.json")),
    "worker writes checkpoints": ("workers", put("data", "runs/r-1/checkpoints/x")),
    "job writes a run record": ("job", put("data", "runs/r-1/run.json")),
    "job writes events": ("job", put("data", "runs/r-1/events/x")),
    "job reads the manifest": ("job", get("staging", MANIFEST)),
    "job scales a group": ("job", set_capacity("exports")),
    "worker writes data": ("workers", put("data", "datasets/d/x")),
    "worker writes the bundle": ("workers", lambda cluster, node: put("staging", cluster.bundle)(cluster, node)),
    "worker writes the manifest": ("workers", put("staging", MANIFEST)),
    "worker reads the head's events": ("workers", get("staging", f"{HEAD_EVENTS}x")),
    "worker reads another stack's run": ("workers", get("data", "runs/r-1/results/x", "other_exports")),
    "worker lists another stack's bucket": (
        "workers",
        lambda cluster, node: node("s3").list_objects_v2(Bucket=cluster.other_exports["data_bucket"]),
    ),
    "worker reads another stack's manifest": ("workers", get("staging", MANIFEST, "other_exports")),
    "worker scales its group to zero": ("workers", set_capacity("exports")),
    "worker completes a lifecycle action": ("workers", complete_hook),
    "worker sends a heartbeat for another stack's node": ("workers", send_heartbeat("other_exports")),
    "worker reads a secret of another application": (
        "workers",
        lambda cluster, node: node("ssm").get_parameter(Name="/other/secret", WithDecryption=True),
    ),
    "worker starts an instance": (
        "workers",
        lambda cluster, node: node("ec2").run_instances(ImageId="ami-1", MinCount=1, MaxCount=1),
    ),
    "head reads data": ("head", get("data", "datasets/d/x")),
    "head writes the manifest": ("head", put("staging", MANIFEST)),
    "head deletes the results of a run": (
        "head",
        lambda cluster, node: node("s3").delete_object(Bucket=cluster.data, Key="runs/r-1/results/x"),
    ),
    "head writes another stack's run": ("head", put("data", "runs/r-1/control.json", "other_exports")),
    "head scales another stack's group to zero": ("head", set_capacity("other_exports")),
}
DENIED_CODES = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation"}


@pytest.mark.parametrize("case", ALLOWED)
def test_nodes_have_the_required_permissions(cluster: Cluster, case: str) -> None:
    role, call = ALLOWED[case]
    call(cluster, cluster.node(role))


@pytest.mark.parametrize("case", ALLOWED)
def test_credentials_of_nodes_are_denied_outside_of_the_vpc(cluster: Cluster, case: str) -> None:
    role, call = ALLOWED[case]
    with pytest.raises(ClientError) as raised:
        call(cluster, cluster.node(role, on_node=False))
    # The response to a HEAD request has no body.
    assert raised.value.response["Error"]["Code"] in {*DENIED_CODES, "403"}


def test_s3_endpoint_allows_the_buckets_of_the_stack_only(cluster: Cluster) -> None:
    """Its policy applies even to credentials that may write to every bucket."""
    iam, bucket = boto3.client("iam"), "bucket-of-another-account"
    boto3.client("s3").create_bucket(Bucket=bucket)
    name = cluster.role_name("workers")
    allow = {"Effect": "Allow", "Action": "s3:PutObject", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    iam.put_role_policy(RoleName=name, PolicyName="wide", PolicyDocument=document)
    try:
        with pytest.raises(ClientError, match="no VPC endpoint policy allows the s3:PutObject action"):
            cluster.node("workers")("s3").put_object(Bucket=bucket, Key="x", Body=b"x")
        cluster.node("workers")("s3").put_object(Bucket=cluster.data, Key="x", Body=b"x")
    finally:
        iam.delete_role_policy(RoleName=name, PolicyName="wide")
        boto3.client("s3").delete_bucket(Bucket=bucket)


def test_boundary_limits_a_role_that_allows_more(cluster: Cluster) -> None:
    iam, name = boto3.client("iam"), cluster.role_name("workers")
    allow = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    iam.put_role_policy(RoleName=name, PolicyName="wide", PolicyDocument=document)
    try:
        with pytest.raises(ClientError, match="no permissions boundary allows the ssm:GetParameter action"):
            cluster.node("workers")("ssm").get_parameter(Name="/other/secret", WithDecryption=True)
    finally:
        iam.delete_role_policy(RoleName=name, PolicyName="wide")


def test_worker_distinguishes_a_missing_run_from_denied_access(cluster: Cluster) -> None:
    with pytest.raises(ClientError, match="NoSuchKey"):
        cluster.node("workers")("s3").get_object(Bucket=cluster.staging, Key=CURRENT_RUN)


def test_worker_may_send_heartbeats_for_the_same_group(cluster: Cluster) -> None:
    with pytest.raises(ClientError) as raised:  # the instance does not exist
        send_heartbeat("exports")(cluster, cluster.node("workers"))
    assert raised.value.response["Error"]["Code"] == "ValidationError"


@pytest.mark.parametrize("case", DENIED)
def test_nodes_have_no_further_permissions(cluster: Cluster, case: str) -> None:
    role, call = DENIED[case]
    with pytest.raises(ClientError) as raised:
        call(cluster, cluster.node(role))
    assert raised.value.response["Error"]["Code"] in DENIED_CODES


WIDE = {"Version": "2012-10-17", "Statement": {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}
"""The effect of a policy that is attached to a role later."""

WRITES: dict[str, tuple[str, Call]] = {
    "worker writes the manifest": ("workers", put("staging", MANIFEST)),
    "worker writes the bundle": ("workers", lambda cluster, node: put("staging", cluster.bundle)(cluster, node)),
    "worker writes the run record": ("workers", put("staging", CURRENT_RUN)),
    "worker writes a job archive": ("workers", put("staging", job_source_key("0" * 64))),
    "worker writes the address of the controller": ("workers", put("staging", CONTROLLER_ENDPOINT)),
    "worker deletes the manifest": (
        "workers",
        lambda cluster, node: node("s3").delete_object(Bucket=cluster.staging, Key=MANIFEST),
    ),
    "worker removes the bucket policy": (
        "workers",
        lambda cluster, node: node("s3").delete_bucket_policy(Bucket=cluster.staging),
    ),
    "worker suspends versioning": (
        "workers",
        lambda cluster, node: node("s3").put_bucket_versioning(
            Bucket=cluster.staging, VersioningConfiguration={"Status": "Suspended"}
        ),
    ),
    "job writes the manifest": ("job", put("staging", MANIFEST)),
    "job writes the address of the controller": ("job", put("staging", CONTROLLER_ENDPOINT)),
    "job removes the bucket policy": (
        "job",
        lambda cluster, node: node("s3").delete_bucket_policy(Bucket=cluster.staging),
    ),
    "head writes the manifest": ("head", put("staging", MANIFEST)),
    "head writes the bundle": ("head", lambda cluster, node: put("staging", cluster.bundle)(cluster, node)),
    "head writes the run record": ("head", put("staging", CURRENT_RUN)),
    "head writes the events of a builder": ("head", put("staging", f"{BAKE_EVENTS}x")),
}


@pytest.fixture
def widened(cluster: Cluster) -> Iterator[Cluster]:
    """Nodes whose roles allow all actions of S3."""
    iam = boto3.client("iam")
    for role in cluster.roles.values():
        iam.put_role_policy(RoleName=role, PolicyName="wide", PolicyDocument=json.dumps(WIDE))
    yield cluster
    for role in cluster.roles.values():
        iam.delete_role_policy(RoleName=role, PolicyName="wide")


@pytest.mark.parametrize("case", WRITES)
def test_the_staging_bucket_denies_writes_that_a_wider_role_allows(widened: Cluster, case: str) -> None:
    role, call = WRITES[case]
    put("data", "runs/r-1/events/wide")(widened, widened.node(role))
    with pytest.raises(ClientError) as raised:
        call(widened, widened.node(role))
    assert raised.value.response["Error"]["Code"] == "AccessDenied"


def test_nodes_with_a_wider_role_read_the_bucket_and_write_events(widened: Cluster) -> None:
    for role, events in (("head", HEAD_EVENTS), ("workers", BAKE_EVENTS)):
        get("staging", MANIFEST)(widened, widened.node(role))
        put("staging", f"{events}z")(widened, widened.node(role))
        widened.node(role)("s3").list_objects_v2(Bucket=widened.staging, Prefix=events)


def test_an_overwritten_manifest_can_be_restored(cluster: Cluster) -> None:
    s3, manifest = boto3.client("s3"), {"Bucket": cluster.staging, "Key": MANIFEST}
    before = s3.get_object(**manifest)
    content = before["Body"].read()
    s3.put_object(**manifest, Body=b"{}")
    assert s3.get_object(**manifest, VersionId=before["VersionId"])["Body"].read() == content
    s3.put_object(**manifest, Body=content)
