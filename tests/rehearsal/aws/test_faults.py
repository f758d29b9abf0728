"""Faults on demand: capacity, throttling, eventual consistency, refusals."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Capacity, Deny, Fault, Invisible, Outage, Throttle
from rehearsal.aws.process import OPERATOR_KEY, EmulatedAws
from tests.rehearsal.aws.autoscaling.test_lifecycle import members, put_hook
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.ec2.test_reservations import terminate_all

TYPE = "c7i.2xlarge"  # no other test launches it


@pytest.fixture
def inject(aws: EmulatedAws) -> Iterator[Callable[..., None]]:
    yield aws.inject
    aws.clear_faults()


def launch(client: Client, group: str, count: int, **given: Any) -> dict[str, Any]:
    return dict(
        client("autoscaling").launch_instances(
            AutoScalingGroupName=group, RequestedCapacity=count, ClientToken=group, **given
        )
    )


def ids_of(answer: dict[str, Any]) -> list[str]:
    return [one for pool in answer["Instances"] for one in pool["InstanceIds"]]


def run(client: Client, network: Network, lowest: int, most: int, kind: str = TYPE) -> list[str]:
    made = client("ec2").run_instances(
        ImageId=network.image, InstanceType=kind, SubnetId=network.subnet, MinCount=lowest, MaxCount=most
    )
    return [each["InstanceId"] for each in made["Instances"]]


def code_of(call: Callable[[], Any]) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call()
    told = caught.value.response
    return told["Error"]["Code"], told["ResponseMetadata"]["HTTPStatusCode"]


# Capacity


def test_launch_instances_yields_what_there_is_and_says_what_there_is_not(
    client: Client, inject: Any, group: Callable[..., str]
) -> None:
    name = group({"InstanceType": TYPE})
    inject(Capacity(limit=2, instance_type=TYPE))
    answer = launch(client, name, 3)
    assert len(ids_of(answer)) == 2
    (error,) = answer["Errors"]
    assert (error["ErrorCode"], error["InstanceType"]) == ("InsufficientInstanceCapacity", TYPE)
    assert (error["AvailabilityZone"], error["MarketType"]) == ("us-east-1a", "on-demand")
    (found,) = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    assert (found["DesiredCapacity"], len(found["Instances"])) == (2, 2)


def test_without_any_capacity_nothing_is_launched(client: Client, inject: Any, group: Callable[..., str]) -> None:
    name = group({"InstanceType": TYPE})
    inject(Capacity(limit=0, instance_type=TYPE))
    answer = launch(client, name, 2)
    assert (answer["Instances"], len(answer["Errors"]), members(client, name)) == ([], 1, {})


def test_capacity_comes_back_with_an_end(client: Client, inject: Any, group: Callable[..., str]) -> None:
    name = group({"InstanceType": TYPE})
    inject(Capacity(limit=1, instance_type=TYPE))
    (first,) = ids_of(launch(client, name, 1))
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=2)
    assert list(members(client, name)) == [first]
    client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=first, ShouldDecrementDesiredCapacity=False
    )
    (second,) = members(client, name)
    assert second != first


def test_an_instance_held_by_a_hook_still_takes_capacity(
    client: Client, inject: Any, group: Callable[..., str]
) -> None:
    name = group({"InstanceType": TYPE})
    put_hook(client, name)
    inject(Capacity(limit=1, instance_type=TYPE))
    (first,) = ids_of(launch(client, name, 1))
    client("autoscaling").set_instance_health(InstanceId=first, HealthStatus="Unhealthy")
    assert members(client, name) == {first: "Terminating:Wait"}


@pytest.mark.parametrize(("lowest", "most", "got"), [(1, 3, 2), (2, 2, 2), (2, 5, 2)])
def test_run_instances_launches_between_its_counts(
    client: Client, inject: Any, network: Network, lowest: int, most: int, got: int
) -> None:
    inject(Capacity(limit=2, instance_type=TYPE))
    ids = run(client, network, lowest, most)
    client("ec2").terminate_instances(InstanceIds=ids)
    assert len(ids) == got


def test_run_instances_launches_nothing_below_its_least(
    client: Client, inject: Any, network: Network, aws: EmulatedAws
) -> None:
    inject(Capacity(limit=2, instance_type=TYPE))
    before = aws.dump()
    assert code_of(lambda: run(client, network, 3, 3)) == ("InsufficientInstanceCapacity", 500)
    assert aws.dump() == before


def test_capacity_may_be_short_for_all_types(
    client: Client, inject: Any, aws: EmulatedAws, network: Network, group: Callable[..., str]
) -> None:
    """An instance of another type takes of it."""
    terminate_all(aws, client)
    name = group({"InstanceType": TYPE})
    run(client, network, 1, 1, "t3.medium")
    inject(Capacity(limit=2))
    assert len(ids_of(launch(client, name, 3))) == 1


def test_capacity_of_one_type_leaves_others(client: Client, inject: Any, group: Callable[..., str]) -> None:
    inject(Capacity(limit=0, instance_type=TYPE))
    assert len(ids_of(launch(client, group(), 1))) == 1


# Throttling


THROTTLED: dict[str, tuple[str, str, int, Callable[[Client], Any]]] = {
    "ec2": ("ec2:DescribeInstances", "RequestLimitExceeded", 503, lambda client: client("ec2").describe_instances()),
    "autoscaling": (
        "autoscaling:DescribeAutoScalingGroups",
        "Throttling",
        400,
        lambda client: client("autoscaling").describe_auto_scaling_groups(),
    ),
    "s3": ("s3:ListBuckets", "SlowDown", 503, lambda client: client("s3").list_buckets()),
    "fsx": (
        "fsx:DescribeFileSystems",
        "ThrottlingException",
        400,
        lambda client: client("fsx").describe_file_systems(),
    ),
}


@pytest.mark.parametrize("service", THROTTLED)
def test_calls_are_throttled_as_often_as_asked(client: Client, inject: Any, service: str) -> None:
    operation, code, status, call = THROTTLED[service]
    inject(Throttle(operation=operation, times=2))
    assert [code_of(lambda: call(client)) for _ in range(2)] == [(code, status)] * 2
    call(client)


def test_calls_fail_inside_aws_as_often_as_asked(client: Client, inject: Any) -> None:
    inject(Outage(operation="s3:ListBuckets", times=2))
    failed = [code_of(lambda: client("s3").list_buckets()) for _ in range(2)]
    assert failed == [("InternalError", 500)] * 2
    client("s3").list_buckets()


def test_a_client_that_retries_bears_throttling(aws: EmulatedAws, inject: Any) -> None:
    retrying = boto3.client(
        "ec2",
        endpoint_url=aws.endpoint,
        region_name="us-east-1",
        aws_access_key_id=OPERATOR_KEY,
        aws_secret_access_key="rehearsal",
        config=Config(retries={"mode": "standard", "total_max_attempts": 3}),
    )
    inject(Throttle(operation="ec2:DescribeVpcs", times=1))
    before = len(aws.journal())
    retrying.describe_vpcs()
    assert [entry.error_code for entry in aws.journal()[before:]] == ["RequestLimitExceeded", None]


# Eventual consistency


def shown(client: Client, group: str) -> list[dict[str, Any]]:
    filters = [{"Name": "tag:aws:autoscaling:groupName", "Values": [group]}]
    found = client("ec2").describe_instances(Filters=filters)["Reservations"]
    return [each for reservation in found for each in reservation["Instances"]]


def test_a_new_instance_is_missing_then_without_address_then_whole(
    client: Client, inject: Any, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    inject(Invisible(seconds=60))
    (instance,) = ids_of(launch(client, name, 1))
    asked = {"InstanceIds": [instance]}
    assert shown(client, name) == []
    assert code_of(lambda: client("ec2").describe_instances(**asked)) == ("InvalidInstanceID.NotFound", 400)
    assert code_of(lambda: client("ec2").describe_instance_status(**asked)) == ("InvalidInstanceID.NotFound", 400)
    assert list(members(client, name)) == [instance]
    aws.advance(60)
    (found,) = shown(client, name)
    assert (found["InstanceId"], found["NetworkInterfaces"]) == (instance, [])
    assert not found.get("PrivateIpAddress")
    aws.advance(60)
    (found,) = shown(client, name)
    assert found["PrivateIpAddress"] == found["NetworkInterfaces"][0]["PrivateIpAddress"]


def test_older_instances_stay_visible(client: Client, inject: Any, aws: EmulatedAws, group: Callable[..., str]) -> None:
    name = group()
    launch(client, name, 1)
    aws.advance(200)
    inject(Invisible(seconds=60))
    assert len(shown(client, name)) == 1


def test_the_truth_is_told_all_the_same(aws: EmulatedAws, client: Client, inject: Any, group: Any) -> None:
    name = group()
    inject(Invisible(seconds=60))
    (instance,) = ids_of(launch(client, name, 1))
    (found,) = [each for each in aws.instances() if each.id == instance]
    assert found.private_ip.startswith("127.77.5.")


# Refusals

SUBNET = "subnet-00000000000000000"
DENIED: dict[str, tuple[str, str, int, Callable[[Client], Any]]] = {
    "ec2": (
        "ec2:DeleteSubnet",
        "UnauthorizedOperation",
        403,
        lambda client: client("ec2").delete_subnet(SubnetId=SUBNET),
    ),
    "fsx": (
        "fsx:CreateFileSystem",
        "AccessDeniedException",
        400,
        lambda client: client("fsx").create_file_system(
            FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[SUBNET]
        ),
    ),
    "s3": ("s3:CreateBucket", "AccessDenied", 403, lambda client: client("s3").create_bucket(Bucket="denied-bucket")),
    "iam": ("iam:ListRoles", "AccessDenied", 403, lambda client: client("iam").list_roles()),
    "ssm": (
        "ssm:GetParameter",
        "AccessDeniedException",
        400,
        lambda client: client("ssm").get_parameter(Name="none"),
    ),
    "tag": (
        "tag:GetResources",
        "AccessDeniedException",
        400,
        lambda client: client("resourcegroupstaggingapi").get_resources(),
    ),
}


@pytest.mark.parametrize("service", DENIED)
def test_an_operation_is_denied_in_its_service_s_shape(
    client: Client, inject: Any, aws: EmulatedAws, service: str
) -> None:
    operation, code, status, call = DENIED[service]
    inject(Deny(operation=operation))
    assert code_of(lambda: call(client)) == (code, status)
    entry = aws.journal()[-1]
    assert (f"{entry.service}:{entry.operation}", entry.error_code) == (operation, code)


def test_operations_are_denied_from_the_start_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REHEARSAL_DENY", "s3:CreateBucket, sqs:ListQueues")
    with EmulatedAws.start(tmp_path) as denying:
        session = boto3.Session(OPERATOR_KEY, "rehearsal", region_name="us-east-1")
        s3, ec2 = (session.client(service, endpoint_url=denying.endpoint) for service in ("s3", "ec2"))
        assert code_of(lambda: s3.create_bucket(Bucket="denied-bucket")) == ("AccessDenied", 403)
        ec2.describe_vpcs()


def test_a_denial_of_what_is_no_operation_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REHEARSAL_DENY", "fsx:CreateFilesystem")
    with pytest.raises(RuntimeError, match=r"REHEARSAL_DENY.*no API operation fsx:CreateFilesystem"):
        EmulatedAws.start(tmp_path)


# The control page


WRONG: dict[str, Any] = {
    "an unknown kind": [{"kind": "earthquake"}],
    "no kind": [{"limit": 1}],
    "an unknown key": [{"kind": "capacity", "limit": 1, "zone": "us-east-1a"}],
    "a negative limit": [{"kind": "capacity", "limit": -1}],
    "no such instance type": [{"kind": "capacity", "limit": 1, "instance_type": "p9.huge"}],
    "no time": [{"kind": "invisible", "seconds": 0}],
    "no such operation": [{"kind": "deny", "operation": "ec2:RunInstance"}],
    "no such service": [{"kind": "throttle", "operation": "ec3:RunInstances", "times": 1}],
    "no service": [{"kind": "deny", "operation": "CreateFileSystem"}],
    "no list": {"kind": "deny", "operation": "ec2:RunInstances"},
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_fault_is_refused_with_the_reason(aws: EmulatedAws, case: str) -> None:
    body = json.dumps(WRONG[case]).encode()
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(f"{aws.endpoint}/_rehearsal/faults", body, method="POST"), timeout=10)
    assert caught.value.code == 400
    assert len(json.load(caught.value)["error"]) > 10


def test_of_a_list_with_a_wrong_fault_none_is_on(aws: EmulatedAws, client: Client) -> None:
    right: Fault = Deny(operation="ec2:DescribeVpcs")
    with pytest.raises(ValueError, match="no API operation ec2:RunInstance"):
        aws.inject(right, Deny(operation="ec2:RunInstance"))
    client("ec2").describe_vpcs()


def test_cleared_faults_are_off(aws: EmulatedAws, client: Client) -> None:
    aws.inject(Deny(operation="ec2:DescribeVpcs"), Throttle(operation="ec2:DescribeSubnets", times=5))
    aws.clear_faults()
    client("ec2").describe_vpcs()
    client("ec2").describe_subnets()


def test_an_ended_fault_is_off_and_others_stay(aws: EmulatedAws, client: Client) -> None:
    ended: Fault = Deny(operation="ec2:DescribeVpcs")
    stays: Fault = Deny(operation="ec2:DescribeSubnets")
    aws.inject(ended, stays)
    aws.end_faults([ended])
    client("ec2").describe_vpcs()
    assert code_of(client("ec2").describe_subnets) == ("UnauthorizedOperation", 403)
    assert aws.faults() == [stays]


def test_a_page_has_its_methods_only(aws: EmulatedAws) -> None:
    for page, method, status in (("clock", "DELETE", 405), ("nonsense", "GET", 404)):
        with (
            pytest.raises(HTTPError) as caught,
            contextlib.closing(urlopen(Request(f"{aws.endpoint}/_rehearsal/{page}", method=method), timeout=10)),
        ):
            pass
        assert caught.value.code == status
