"""The journal names every call as IAM does; the control endpoints return the actual state."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.account_file import TOKEN_HEADER
from rehearsal.aws.journal import JournalEntry
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client, Network


def recorded(aws: EmulatedAws, call: Callable[[], Any]) -> list[JournalEntry]:
    """Return the journal entries of a call, which may fail."""
    before = len(aws.journal())
    with contextlib.suppress(ClientError):
        call()
    return aws.journal()[before:]


def test_entries_are_numbered_consecutively(client: Client, aws: EmulatedAws) -> None:
    client("ec2").describe_vpcs()
    assert [entry.seq for entry in aws.journal()] == list(range(1, len(aws.journal()) + 1))


def test_call_is_recorded_with_access_key_and_status(client: Client, aws: EmulatedAws) -> None:
    (entry,) = recorded(aws, lambda: client("ec2").create_vpc(CidrBlock="10.3.0.0/16"))
    assert (entry.service, entry.operation, entry.access_key) == ("ec2", "CreateVpc", aws.secrets.operator.id)
    assert (entry.status, entry.error_code, entry.mutating, entry.urn) == (200, None, True, None)


REFUSED = {
    "ec2": lambda client: client("ec2").delete_subnet(SubnetId="subnet-00000000000000000"),
    "iam": lambda client: client("iam").get_role(RoleName="none"),
    "s3": lambda client: client("s3").get_object(Bucket="no-such-bucket-here", Key="x"),
    "fsx": lambda client: client("fsx").describe_file_systems(FileSystemIds=["fs-00000000"]),
    "autoscaling": lambda client: client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName="none"),
    "ssm": lambda client: client("ssm").get_parameter(Name="none"),
}
CODES = {
    "ec2": "InvalidSubnetID.NotFound",
    "iam": "NoSuchEntity",
    "s3": "NoSuchBucket",
    "fsx": "FileSystemNotFound",
    "autoscaling": "ValidationError",
    "ssm": "ParameterNotFound",
}


@pytest.mark.parametrize("service", REFUSED)
def test_error_is_recorded_with_code_and_message(client: Client, aws: EmulatedAws, service: str) -> None:
    (entry,) = recorded(aws, lambda: REFUSED[service](client))
    assert (entry.service, entry.error_code) == (service, CODES[service])
    assert entry.error_message
    assert entry.status >= 400


def test_urn_header_is_recorded(aws: EmulatedAws) -> None:
    client = aws.session().client("ec2", endpoint_url=aws.endpoint)
    client.meta.events.register(
        "before-sign.*.*", lambda request, **_: request.headers.add_header("x-trainyard-urn", "urn:x")
    )
    (entry,) = recorded(aws, client.describe_vpcs)
    assert (entry.urn, entry.mutating) == ("urn:x", False)


def test_s3_operations_are_named(client: Client, aws: EmulatedAws) -> None:
    s3 = client("s3")
    bucket = {"Bucket": "names-of-operations"}
    item = {**bucket, "Key": "a/b c.txt"}

    def calls() -> None:
        s3.create_bucket(**bucket)
        s3.head_bucket(**bucket)
        s3.put_bucket_tagging(**bucket, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]})
        s3.put_object(**item, Body=b"x")
        s3.head_object(**item)
        s3.get_object(**item)["Body"].read()
        s3.list_objects_v2(**bucket, Prefix="a/")
        upload = s3.create_multipart_upload(**item)["UploadId"]
        part = s3.upload_part(**item, UploadId=upload, PartNumber=1, Body=b"y")
        parts = {"Parts": [{"ETag": part["ETag"], "PartNumber": 1}]}
        s3.complete_multipart_upload(**item, UploadId=upload, MultipartUpload=parts)
        s3.delete_objects(**bucket, Delete={"Objects": [{"Key": "a/b c.txt"}]})
        s3.delete_object(**item)
        s3.delete_bucket(**bucket)

    assert [entry.operation for entry in recorded(aws, calls)] == [
        *("CreateBucket", "HeadBucket", "PutBucketTagging", "PutObject", "HeadObject", "GetObject", "ListObjectsV2"),
        *("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload", "DeleteObjects", "DeleteObject"),
        "DeleteBucket",
    ]


def test_unsupported_call_returns_not_implemented(client: Client, aws: EmulatedAws) -> None:
    (entry,) = recorded(aws, lambda: client("fsx").describe_file_caches())
    assert (entry.status, entry.error_code) == (501, "NotImplemented")


def test_role_credentials_are_distinguished(client: Client, aws: EmulatedAws, profile: str) -> None:
    credentials = client("sts").assume_role(RoleArn="arn:aws:iam::123456789012:role/node", RoleSessionName="i-1")[
        "Credentials"
    ]
    session = boto3.Session(
        credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials["SessionToken"], "us-east-1"
    )
    node = session.client("sts", endpoint_url=aws.endpoint)
    (entry,) = recorded(aws, node.get_caller_identity)
    assert entry.access_key == credentials["AccessKeyId"]
    assert ":assumed-role/node/i-1" in node.get_caller_identity()["Arn"]


def test_instances_page_returns_the_actual_state(
    client: Client, aws: EmulatedAws, group: Callable[..., str], network: Network
) -> None:
    name = group({"UserData": "I2Nsb3VkLWNvbmZpZwo="})
    client("autoscaling").launch_instances(AutoScalingGroupName=name, RequestedCapacity=1, ClientToken=name)
    (record,) = [record for record in aws.instances() if record.autoscaling_group == name]
    assert (record.state, record.lifecycle_state, record.role_name) == ("running", "InService", "node")
    assert (record.user_data, record.image, record.subnet) == ("I2Nsb3VkLWNvbmZpZwo=", network.image, network.subnet)
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)
    (terminated,) = [other for other in aws.instances() if other.id == record.id]
    assert (terminated.state, terminated.lifecycle_state, terminated.private_ip) == (
        "terminated",
        "Terminated",
        record.private_ip,
    )


def test_control_endpoints_are_not_in_the_journal(aws: EmulatedAws) -> None:
    assert recorded(aws, aws.instances) == []
    assert recorded(aws, aws.list_resources) == []


def test_resource_list_includes_unknown_resource_types(client: Client, aws: EmulatedAws) -> None:
    before = set(aws.list_resources())
    client("sqs").create_queue(QueueName="alarms")
    (record,) = set(aws.list_resources()) - before
    assert (record.service, record.kind) == ("sqs", "queues")


def test_connections_are_kept_alive(aws: EmulatedAws) -> None:
    request = urllib.request.Request(f"{aws.endpoint}/_rehearsal/instances", headers={TOKEN_HEADER: aws.secrets.token})
    with urllib.request.urlopen(request, timeout=10) as response:
        assert response.version == 11
        assert json.load(response) is not None


def test_continue_response_is_sent_at_once(aws: EmulatedAws) -> None:
    host, port = aws.endpoint.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = "PUT /none/key HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
        connection.sendall(head.encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 100")


def test_process_stops_at_context_exit(tmp_path: Path) -> None:
    with EmulatedAws.start(tmp_path) as running:
        pid = running.pid
        running.list_resources()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


ORPHAN = """
import os, sys
from pathlib import Path
from rehearsal.aws.account_file import TOKEN_HEADER
from rehearsal.aws.process import EmulatedAws
print(EmulatedAws.start(Path(sys.argv[1])).pid, flush=True)
os._exit(1)
"""


def test_process_stops_with_the_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ORPHAN, str(tmp_path)]
    pid = int(subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[3]).stdout)
    deadline = time.monotonic() + 10.0
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)


def test_failed_start_reports_the_reason(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nonsense"):
        EmulatedAws.start(tmp_path, addresses="nonsense")
