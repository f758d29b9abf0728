"""Injected faults: capacity, throttling, eventual consistency and denials."""

import contextlib
import json
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from rehearsal.aws.account_file import TOKEN_HEADER
from rehearsal.aws.faults import Capacity, Deny, EventualConsistency, Fault, Outage, Throttle
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.autoscaling.test_lifecycle import members, put_hook
from tests.rehearsal.aws.conftest import ADDRESSES, Client, Network
from tests.rehearsal.aws.ec2.test_reservations import terminate_all

TYPE = "c7i.2xlarge"  # no other test launches it


@pytest.fixture
def inject(aws: EmulatedAws) -> Iterator[Callable[..., None]]:
    yield aws.inject
    aws.clear_faults()


def launch(client: Client, group: str, count: int, **options: Any) -> dict[str, Any]:
    return dict(
        client("autoscaling").launch_instances(
            AutoScalingGroupName=group, RequestedCapacity=count, ClientToken=group, **options
        )
    )


def ids_of(response: dict[str, Any]) -> list[str]:
    return [instance_id for pool in response["Instances"] for instance_id in pool["InstanceIds"]]


def run(client: Client, network: Network, minimum: int, maximum: int, instance_type: str = TYPE) -> list[str]:
    response = client("ec2").run_instances(
        ImageId=network.image, InstanceType=instance_type, SubnetId=network.subnet, MinCount=minimum, MaxCount=maximum
    )
    return [instance["InstanceId"] for instance in response["Instances"]]


def code_of(call: Callable[[], Any]) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call()
    response = caught.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


# Capacity


def test_launch_instances_returns_partial_capacity_with_an_error(
    client: Client, inject: Any, group: Callable[..., str]
) -> None:
    name = group({"InstanceType": TYPE})
    inject(Capacity(limit=2, instance_type=TYPE))
    response = launch(client, name, 3)
    assert len(ids_of(response)) == 2
    (error,) = response["Errors"]
    assert (error["ErrorCode"], error["InstanceType"]) == ("InsufficientInstanceCapacity", TYPE)
    assert (error["AvailabilityZone"], error["MarketType"]) == ("us-east-1a", "on-demand")
    (described,) = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
    assert (described["DesiredCapacity"], len(described["Instances"])) == (2, 2)


def test_nothing_is_launched_without_capacity(client: Client, inject: Any, group: Callable[..., str]) -> None:
    name = group({"InstanceType": TYPE})
    inject(Capacity(limit=0, instance_type=TYPE))
    response = launch(client, name, 2)
    assert (response["Instances"], len(response["Errors"]), members(client, name)) == ([], 1, {})


def test_capacity_is_available_again_after_a_termination(
    client: Client, inject: Any, group: Callable[..., str]
) -> None:
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


def test_instance_held_by_a_hook_uses_capacity(client: Client, inject: Any, group: Callable[..., str]) -> None:
    name = group({"InstanceType": TYPE})
    put_hook(client, name)
    inject(Capacity(limit=1, instance_type=TYPE))
    (first,) = ids_of(launch(client, name, 1))
    client("autoscaling").set_instance_health(InstanceId=first, HealthStatus="Unhealthy")
    assert members(client, name) == {first: "Terminating:Wait"}


@pytest.mark.parametrize(("minimum", "maximum", "expected"), [(1, 3, 2), (2, 2, 2), (2, 5, 2)])
def test_run_instances_launches_between_minimum_and_maximum(
    client: Client, inject: Any, network: Network, minimum: int, maximum: int, expected: int
) -> None:
    inject(Capacity(limit=2, instance_type=TYPE))
    ids = run(client, network, minimum, maximum)
    client("ec2").terminate_instances(InstanceIds=ids)
    assert len(ids) == expected


def test_run_instances_launches_nothing_below_the_minimum(
    client: Client, inject: Any, network: Network, aws: EmulatedAws
) -> None:
    inject(Capacity(limit=2, instance_type=TYPE))
    before = aws.list_resources()
    assert code_of(lambda: run(client, network, 3, 3)) == ("InsufficientInstanceCapacity", 500)
    assert aws.list_resources() == before


def test_capacity_limit_can_apply_to_all_types(
    client: Client, inject: Any, aws: EmulatedAws, network: Network, group: Callable[..., str]
) -> None:
    """An instance of another type uses the same capacity."""
    terminate_all(aws, client)
    for reservation in client("ec2").describe_capacity_reservations()["CapacityReservations"]:  # they use capacity, too
        if (reservation["State"], reservation["ReservationType"]) == ("active", "default"):
            client("ec2").cancel_capacity_reservation(CapacityReservationId=reservation["CapacityReservationId"])
    name = group({"InstanceType": TYPE})
    run(client, network, 1, 1, "t3.medium")
    inject(Capacity(limit=2))
    assert len(ids_of(launch(client, name, 3))) == 1


def test_capacity_limit_of_a_type_does_not_affect_others(
    client: Client, inject: Any, group: Callable[..., str]
) -> None:
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
def test_calls_are_throttled_the_specified_number_of_times(client: Client, inject: Any, service: str) -> None:
    operation, code, status, call = THROTTLED[service]
    inject(Throttle(operation=operation, times=2))
    assert [code_of(lambda: call(client)) for _ in range(2)] == [(code, status)] * 2
    call(client)


def test_calls_fail_with_500_the_specified_number_of_times(client: Client, inject: Any) -> None:
    inject(Outage(operation="s3:ListBuckets", times=2))
    failed = [code_of(lambda: client("s3").list_buckets()) for _ in range(2)]
    assert failed == [("InternalError", 500)] * 2
    client("s3").list_buckets()


def test_client_with_retries_tolerates_throttling(aws: EmulatedAws, inject: Any) -> None:
    config = Config(retries={"mode": "standard", "total_max_attempts": 3})
    retrying = aws.session().client("ec2", endpoint_url=aws.endpoint, config=config)
    inject(Throttle(operation="ec2:DescribeVpcs", times=1))
    before = len(aws.journal())
    retrying.describe_vpcs()
    assert [entry.error_code for entry in aws.journal()[before:]] == ["RequestLimitExceeded", None]


# Eventual consistency


def visible_instances(client: Client, group: str) -> list[dict[str, Any]]:
    filters = [{"Name": "tag:aws:autoscaling:groupName", "Values": [group]}]
    described = client("ec2").describe_instances(Filters=filters)["Reservations"]
    return [instance for reservation in described for instance in reservation["Instances"]]


def test_new_instance_is_missing_then_without_address_then_complete(
    client: Client, inject: Any, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    inject(EventualConsistency(seconds=60))
    (instance,) = ids_of(launch(client, name, 1))
    parameters = {"InstanceIds": [instance]}
    assert visible_instances(client, name) == []
    assert code_of(lambda: client("ec2").describe_instances(**parameters)) == ("InvalidInstanceID.NotFound", 400)
    assert code_of(lambda: client("ec2").describe_instance_status(**parameters)) == ("InvalidInstanceID.NotFound", 400)
    assert list(members(client, name)) == []
    aws.advance_clock(60)
    assert list(members(client, name)) == [instance]
    (described,) = visible_instances(client, name)
    assert (described["InstanceId"], described["NetworkInterfaces"]) == (instance, [])
    assert not described.get("PrivateIpAddress")
    aws.advance_clock(60)
    (described,) = visible_instances(client, name)
    assert described["PrivateIpAddress"] == described["NetworkInterfaces"][0]["PrivateIpAddress"]


def test_older_instances_remain_visible(
    client: Client, inject: Any, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    name = group()
    launch(client, name, 1)
    aws.advance_clock(200)
    inject(EventualConsistency(seconds=60))
    assert len(visible_instances(client, name)) == 1


def test_control_endpoint_shows_instances_that_are_not_visible_yet(
    aws: EmulatedAws, client: Client, inject: Any, group: Any
) -> None:
    name = group()
    inject(EventualConsistency(seconds=60))
    (instance_id,) = ids_of(launch(client, name, 1))
    (described,) = [instance for instance in aws.instances() if instance.id == instance_id]
    assert ip_address(described.private_ip) in ADDRESSES


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
def test_denied_operation_returns_the_error_format_of_the_service(
    client: Client, inject: Any, aws: EmulatedAws, service: str
) -> None:
    operation, code, status, call = DENIED[service]
    inject(Deny(operation=operation))
    assert code_of(lambda: call(client)) == (code, status)
    entry = aws.journal()[-1]
    assert (f"{entry.service}:{entry.operation}", entry.error_code) == (operation, code)


def test_operations_are_denied_by_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REHEARSAL_DENY", "s3:CreateBucket, sqs:ListQueues")
    with EmulatedAws.start(tmp_path) as denying:
        session = denying.session()
        s3, ec2 = (session.client(service, endpoint_url=denying.endpoint) for service in ("s3", "ec2"))
        assert code_of(lambda: s3.create_bucket(Bucket="denied-bucket")) == ("AccessDenied", 403)
        ec2.describe_vpcs()


def test_unknown_denied_operation_prevents_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REHEARSAL_DENY", "fsx:CreateFilesystem")
    with pytest.raises(RuntimeError, match=r"REHEARSAL_DENY.*no API operation fsx:CreateFilesystem"):
        EmulatedAws.start(tmp_path)


# The control API


WRONG: dict[str, Any] = {
    "an unknown kind": [{"kind": "earthquake"}],
    "no kind": [{"limit": 1}],
    "an unknown key": [{"kind": "capacity", "limit": 1, "region": "us-east-1"}],
    "a negative limit": [{"kind": "capacity", "limit": -1}],
    "no such instance type": [{"kind": "capacity", "limit": 1, "instance_type": "p9.huge"}],
    "no time": [{"kind": "eventual-consistency", "seconds": 0}],
    "no such operation": [{"kind": "deny", "operation": "ec2:RunInstance"}],
    "no such service": [{"kind": "throttle", "operation": "ec3:RunInstances", "times": 1}],
    "no service": [{"kind": "deny", "operation": "CreateFileSystem"}],
    "no list": {"kind": "deny", "operation": "ec2:RunInstances"},
}


def control_request(aws: EmulatedAws, endpoint: str, method: str, body: bytes | None = None) -> Request:
    return Request(f"{aws.endpoint}/_rehearsal/{endpoint}", body, {TOKEN_HEADER: aws.secrets.token}, method=method)


@pytest.mark.parametrize("case", WRONG)
def test_invalid_fault_is_refused_with_the_reason(aws: EmulatedAws, case: str) -> None:
    body = json.dumps(WRONG[case]).encode()
    with pytest.raises(HTTPError) as caught:
        urlopen(control_request(aws, "faults", "POST", body), timeout=10)
    assert caught.value.code == 400
    assert len(json.load(caught.value)["error"]) > 10


def test_list_with_an_invalid_fault_is_refused_entirely(aws: EmulatedAws, client: Client) -> None:
    right: Fault = Deny(operation="ec2:DescribeVpcs")
    with pytest.raises(ValueError, match="no API operation ec2:RunInstance"):
        aws.inject(right, Deny(operation="ec2:RunInstance"))
    client("ec2").describe_vpcs()


def test_cleared_faults_are_inactive(aws: EmulatedAws, client: Client) -> None:
    aws.inject(Deny(operation="ec2:DescribeVpcs"), Throttle(operation="ec2:DescribeSubnets", times=5))
    aws.clear_faults()
    client("ec2").describe_vpcs()
    client("ec2").describe_subnets()


def test_removed_fault_is_inactive_and_others_remain(aws: EmulatedAws, client: Client) -> None:
    ended: Fault = Deny(operation="ec2:DescribeVpcs")
    stays: Fault = Deny(operation="ec2:DescribeSubnets")
    aws.inject(ended, stays)
    aws.remove_faults([ended])
    client("ec2").describe_vpcs()
    assert code_of(client("ec2").describe_subnets) == ("UnauthorizedOperation", 403)
    assert aws.faults() == [stays]


def test_faults_without_effect_are_those_that_refused_no_call(aws: EmulatedAws, client: Client, inject: Any) -> None:
    refused = [Deny(operation="ec2:DescribeVpcs"), Throttle(operation="ec2:DescribeSubnets", times=2)]
    unused = [Deny(operation="fsx:CreateFileSystem"), Outage(operation="fsx:DescribeFileSystems", times=1)]
    aws.clear_faults()
    inject(*refused, *unused, Capacity(limit=1000))
    for call in (client("ec2").describe_vpcs, client("ec2").describe_subnets):
        with contextlib.suppress(ClientError):
            call()
    assert aws.faults_without_effect() == unused


def test_page_supports_only_the_methods(aws: EmulatedAws) -> None:
    for endpoint, method, status in (("clock", "DELETE", 405), ("nonsense", "GET", 404)):
        with (
            pytest.raises(HTTPError) as caught,
            contextlib.closing(urlopen(control_request(aws, endpoint, method), timeout=10)),
        ):
            pass
        assert caught.value.code == status
