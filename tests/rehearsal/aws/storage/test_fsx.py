"""FSx for Lustre: the life cycle of a file system."""

import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.rehearsal.aws.conftest import Client, Network

DEADLINE_SECONDS = 10.0


def make(client: Client, network: Network, **given: Any) -> dict[str, Any]:
    asked = {
        "FileSystemType": "LUSTRE",
        "StorageCapacity": 1200,
        "SubnetIds": [network.subnet],
        "SecurityGroupIds": [network.group],
        "LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 125},
        "Tags": [{"Key": "Name", "Value": "scratch"}],
        **given,
    }
    return dict(client("fsx").create_file_system(**asked)["FileSystem"])


def described(client: Client, name: str) -> dict[str, Any]:
    return dict(client("fsx").describe_file_systems(FileSystemIds=[name])["FileSystems"][0])


def await_available(client: Client, name: str) -> dict[str, Any]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (found := described(client, name))["Lifecycle"] != "AVAILABLE":
        assert time.monotonic() < deadline, f"{name} is still {found['Lifecycle']}"
        time.sleep(0.1)
    return found


def await_gone(client: Client, name: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        try:
            described(client, name)
        except client("fsx").exceptions.FileSystemNotFound:
            return
        time.sleep(0.1)
    pytest.fail(f"{name} is still there after {DEADLINE_SECONDS} s")


def test_a_file_system_becomes_available_with_its_names(client: Client, network: Network) -> None:
    made = make(client, network)
    assert made["Lifecycle"] == "CREATING"
    found = await_available(client, made["FileSystemId"])
    assert found["DNSName"] == f"{made['FileSystemId']}.fsx.us-east-1.amazonaws.com"
    assert found["LustreConfiguration"]["MountName"] == made["LustreConfiguration"]["MountName"]
    assert found["LustreConfiguration"]["PerUnitStorageThroughput"] == 125
    assert (found["StorageCapacity"], found["StorageType"], found["VpcId"]) == (1200, "SSD", network.vpc)
    assert found["Tags"] == [{"Key": "Name", "Value": "scratch"}]


def test_its_network_interfaces_are_in_the_subnet(client: Client, network: Network) -> None:
    made = make(client, network)
    ids = made["NetworkInterfaceIds"]
    found = client("ec2").describe_network_interfaces(NetworkInterfaceIds=ids)["NetworkInterfaces"]
    assert {each["SubnetId"] for each in found} == {network.subnet}
    assert {group["GroupId"] for each in found for group in each["Groups"]} == {network.group}


def test_a_deleted_file_system_goes_with_its_interfaces(client: Client, network: Network) -> None:
    made = make(client, network)
    answer = client("fsx").delete_file_system(FileSystemId=made["FileSystemId"])
    assert answer["Lifecycle"] == "DELETING"
    await_gone(client, made["FileSystemId"])
    with pytest.raises(ClientError, match="NotFound"):
        client("ec2").describe_network_interfaces(NetworkInterfaceIds=made["NetworkInterfaceIds"])


def test_tags_are_put_and_taken(client: Client, network: Network) -> None:
    arn = make(client, network)["ResourceARN"]
    client("fsx").tag_resource(ResourceARN=arn, Tags=[{"Key": "more", "Value": "1"}])
    client("fsx").untag_resource(ResourceARN=arn, TagKeys=["Name"])
    assert client("fsx").list_tags_for_resource(ResourceARN=arn)["Tags"] == [{"Key": "more", "Value": "1"}]


def test_a_client_token_makes_one_file_system(client: Client, network: Network, name: str) -> None:
    token = {"ClientRequestToken": name}
    assert make(client, network, **token)["FileSystemId"] == make(client, network, **token)["FileSystemId"]


@pytest.mark.parametrize(
    "given",
    [
        {"StorageCapacity": 1300},
        {"LustreConfiguration": {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 100}},
        {"LustreConfiguration": {"DeploymentType": "PERSISTENT_2"}},
        {"SubnetIds": ["subnet-00000000000000000"]},
        {"SecurityGroupIds": ["sg-00000000000000000"]},
    ],
    ids=["capacity", "throughput", "no throughput", "subnet", "security group"],
)
def test_fsx_refuses(client: Client, network: Network, given: dict[str, Any]) -> None:
    with pytest.raises(ClientError, match=r"BadRequest|InvalidNetworkSettings"):
        make(client, network, **given)


def test_an_unknown_file_system_is_not_found(client: Client) -> None:
    with pytest.raises(ClientError, match="FileSystemNotFound"):
        client("fsx").delete_file_system(FileSystemId="fs-00000000")
