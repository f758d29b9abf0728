"""Metadata configuration and EFA of FSx for Lustre file systems."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.storage.test_fsx import make

AUTOMATIC = {"MetadataConfiguration": {"Mode": "AUTOMATIC"}}
EFA = {"DeploymentType": "PERSISTENT_2", "PerUnitStorageThroughput": 1000, "EfaEnabled": True, **AUTOMATIC}


@pytest.fixture
def efa_group(client: Client, network: Network, name: str) -> str:
    """A security group that allows all traffic to and from itself."""
    ec2 = client("ec2")
    group = str(ec2.create_security_group(GroupName=name, Description=name, VpcId=network.vpc)["GroupId"])
    within = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=within)
    ec2.authorize_security_group_egress(GroupId=group, IpPermissions=within)
    return group


def refusal(client: Client, network: Network, lustre: dict[str, Any], **overrides: Any) -> str:
    with pytest.raises(ClientError) as caught:
        make(client, network, LustreConfiguration=lustre, **overrides)
    return str(caught.value.response["Error"]["Message"])


def test_efa_enabled_file_system_is_created(client: Client, network: Network, efa_group: str) -> None:
    created = make(
        client, network, StorageCapacity=4800, SecurityGroupIds=[network.group, efa_group], LustreConfiguration=EFA
    )
    assert created["LustreConfiguration"]["EfaEnabled"] is True
    assert created["LustreConfiguration"]["MetadataConfiguration"] == {"Mode": "AUTOMATIC"}


def test_efa_requires_a_group_that_allows_all_traffic_within_it(client: Client, network: Network) -> None:
    assert "security group" in refusal(client, network, EFA, StorageCapacity=4800)


def test_efa_requires_the_capacity_of_the_throughput(client: Client, network: Network, efa_group: str) -> None:
    slower = {**EFA, "PerUnitStorageThroughput": 125}
    message = refusal(client, network, slower, StorageCapacity=4800, SecurityGroupIds=[efa_group])
    assert "multiple of 38400 GiB" in message


@pytest.mark.parametrize(
    "change",
    [
        {"DeploymentType": "SCRATCH_2", "PerUnitStorageThroughput": None},
        {"MetadataConfiguration": None},
        {"MetadataConfiguration": {"Mode": "USER_PROVISIONED"}},
        {"MetadataConfiguration": {"Mode": "AUTOMATIC", "Iops": 1500}},
        {"MetadataConfiguration": {"Mode": "USER_PROVISIONED", "Iops": 2000}},
    ],
)
def test_invalid_metadata_configuration_is_refused(
    client: Client, network: Network, efa_group: str, change: dict[str, Any]
) -> None:
    lustre = {key: value for key, value in {**EFA, **change}.items() if value is not None}
    message = refusal(client, network, lustre, StorageCapacity=4800, SecurityGroupIds=[efa_group])
    assert any(word in message for word in ("etadata", "EfaEnabled"))
