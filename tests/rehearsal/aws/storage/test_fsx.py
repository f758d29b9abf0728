"""FSx for Lustre: the life cycle of a file system."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import FsxDeployment
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.rehearsal.aws.conftest import Client, Network

DEADLINE_SECONDS = 10.0
CREATING_SECONDS, DELETING_SECONDS = 300.0, 600.0


def make(client: Client, network: Network, **overrides: Any) -> dict[str, Any]:
    parameters = {
        "FileSystemType": "LUSTRE",
        "StorageCapacity": 1200,
        "SubnetIds": [network.subnet],
        "SecurityGroupIds": [network.group],
        "LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
        "Tags": [{"Key": "Name", "Value": "scratch"}],
        **overrides,
    }
    return dict(client("fsx").create_file_system(**parameters)["FileSystem"])


def describe(client: Client, name: str) -> dict[str, Any]:
    return dict(client("fsx").describe_file_systems(FileSystemIds=[name])["FileSystems"][0])


def await_available(client: Client, name: str) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (described := describe(client, name))["Lifecycle"] != "AVAILABLE":
        assert time.monotonic() < deadline, f"{name} is still {described['Lifecycle']}"
        time.sleep(0.1)
    return described


def await_deletion(client: Client, name: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        try:
            describe(client, name)
        except client("fsx").exceptions.FileSystemNotFound:
            return
        time.sleep(0.1)
    pytest.fail(f"{name} is still there after {DEADLINE_SECONDS} s")


@pytest.fixture
def slow_fsx(aws: EmulatedAws) -> Iterator[None]:
    aws.set_timing(Timing(fsx_creating_seconds=CREATING_SECONDS, fsx_deleting_seconds=DELETING_SECONDS))
    yield
    aws.set_timing(Timing())


@pytest.mark.usefixtures("slow_fsx")
def test_creation_lasts_as_long_as_configured(client: Client, network: Network, aws: EmulatedAws) -> None:
    name = make(client, network)["FileSystemId"]
    aws.advance_clock(CREATING_SECONDS - 30)
    assert describe(client, name)["Lifecycle"] == "CREATING"
    aws.advance_clock(30)
    assert describe(client, name)["Lifecycle"] == "AVAILABLE"


@pytest.mark.usefixtures("slow_fsx")
def test_deletion_lasts_as_long_as_configured(client: Client, network: Network, aws: EmulatedAws) -> None:
    name = make(client, network)["FileSystemId"]
    aws.advance_clock(CREATING_SECONDS)
    client("fsx").delete_file_system(FileSystemId=name)
    aws.advance_clock(DELETING_SECONDS - 30)
    client("fsx").delete_file_system(FileSystemId=name)  # a repeated request does not start the time again
    assert describe(client, name)["Lifecycle"] == "DELETING"
    aws.advance_clock(30)
    with pytest.raises(client("fsx").exceptions.FileSystemNotFound):
        describe(client, name)


@pytest.mark.usefixtures("slow_fsx")
def test_network_interfaces_remain_during_the_deletion(client: Client, network: Network, aws: EmulatedAws) -> None:
    created = make(client, network)
    client("fsx").delete_file_system(FileSystemId=created["FileSystemId"])
    interfaces = {"NetworkInterfaceIds": created["NetworkInterfaceIds"]}
    assert len(client("ec2").describe_network_interfaces(**interfaces)["NetworkInterfaces"]) == 2
    aws.advance_clock(DELETING_SECONDS)
    with pytest.raises(ClientError, match=r"InvalidNetworkInterfaceID\.NotFound"):
        client("ec2").describe_network_interfaces(**interfaces)


@pytest.fixture
def unavailable(aws: EmulatedAws) -> Iterator[None]:
    """PERSISTENT_2 is not available in the network's zone."""
    aws.inject(FsxDeployment(zone="us-east-1a", type="PERSISTENT_2"))
    yield
    aws.clear_faults()


@pytest.mark.usefixtures("unavailable")
def test_deployment_type_is_not_available_in_each_zone(client: Client, network: Network, aws: EmulatedAws) -> None:
    before = aws.list_resources()
    with pytest.raises(ClientError, match=r"BadRequest.*PERSISTENT_2.*us-east-1a"):
        make(client, network)
    assert aws.list_resources() == before


@pytest.mark.usefixtures("unavailable")
def test_other_deployment_types_and_zones_are_available(client: Client, network: Network) -> None:
    assert make(client, network, LustreConfiguration={"DeploymentType": "SCRATCH_2"})
    zone = {"VpcId": network.vpc, "CidrBlock": "10.0.251.0/24", "AvailabilityZone": "us-east-1b"}
    subnet = client("ec2").create_subnet(**zone)["Subnet"]["SubnetId"]
    assert make(client, network, SubnetIds=[subnet])


def test_file_system_becomes_available_with_dns_and_mount_names(client: Client, network: Network) -> None:
    created = make(client, network)
    assert created["Lifecycle"] == "CREATING"
    described = await_available(client, created["FileSystemId"])
    assert described["DNSName"] == f"{created['FileSystemId']}.fsx.us-east-1.amazonaws.com"
    assert described["LustreConfiguration"]["MountName"] == created["LustreConfiguration"]["MountName"]
    assert described["LustreConfiguration"]["PerUnitStorageThroughput"] == 125
    assert (described["StorageCapacity"], described["StorageType"], described["VpcId"]) == (1200, "SSD", network.vpc)
    assert described["Tags"] == [{"Key": "Name", "Value": "scratch"}]


def test_file_system_interfaces_are_in_the_subnet(client: Client, network: Network) -> None:
    created = make(client, network)
    ids = created["NetworkInterfaceIds"]
    described = client("ec2").describe_network_interfaces(NetworkInterfaceIds=ids)["NetworkInterfaces"]
    assert {interface["SubnetId"] for interface in described} == {network.subnet}
    assert {group["GroupId"] for interface in described for group in interface["Groups"]} == {network.group}


def test_deleted_file_system_is_removed_with_the_interfaces(client: Client, network: Network) -> None:
    created = make(client, network)
    response = client("fsx").delete_file_system(FileSystemId=created["FileSystemId"])
    assert response["Lifecycle"] == "DELETING"
    await_deletion(client, created["FileSystemId"])
    with pytest.raises(ClientError, match="NotFound"):
        client("ec2").describe_network_interfaces(NetworkInterfaceIds=created["NetworkInterfaceIds"])


def test_tags_are_added_and_removed(client: Client, network: Network) -> None:
    arn = make(client, network)["ResourceARN"]
    client("fsx").tag_resource(ResourceARN=arn, Tags=[{"Key": "more", "Value": "1"}])
    client("fsx").untag_resource(ResourceARN=arn, TagKeys=["Name"])
    assert client("fsx").list_tags_for_resource(ResourceARN=arn)["Tags"] == [{"Key": "more", "Value": "1"}]


def test_client_token_creates_one_file_system(client: Client, network: Network, name: str) -> None:
    token = {"ClientRequestToken": name}
    assert make(client, network, **token)["FileSystemId"] == make(client, network, **token)["FileSystemId"]


@pytest.mark.parametrize(
    "overrides",
    [
        {"StorageCapacity": 1300},
        {"LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 100}},
        {"LustreConfiguration": {"DeploymentType": "PERSISTENT_2"}},
        {"SubnetIds": ["subnet-00000000000000000"]},
        {"SecurityGroupIds": ["sg-00000000000000000"]},
    ],
    ids=["capacity", "throughput", "no throughput", "subnet", "security group"],
)
def test_fsx_refuses(client: Client, network: Network, overrides: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match=r"BadRequest|InvalidNetworkSettings"):
        make(client, network, **overrides)


def test_unknown_file_system_does_not_exist(client: Client) -> None:
    with pytest.raises(ClientError, match="FileSystemNotFound"):
        client("fsx").delete_file_system(FileSystemId="fs-00000000")
