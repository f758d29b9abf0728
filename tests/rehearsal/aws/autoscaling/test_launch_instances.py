"""Auto Scaling groups and LaunchInstances, as the launch of a cluster uses them."""

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import ADDRESSES, UBUNTU_PARAMETER, Client, Network

P4D_INTERFACES = [{"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}] + [
    {"NetworkCardIndex": card, "DeviceIndex": 1 if card == 0 else 0, "InterfaceType": "efa-only"} for card in range(4)
]


def describe_group(client: Client, group: str) -> dict[str, Any]:
    described = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]
    return dict(described[0])


def launched(client: Client, group: str, capacity: int, token: str = "first", **overrides: Any) -> dict[str, Any]:
    return dict(
        client("autoscaling").launch_instances(
            AutoScalingGroupName=group, RequestedCapacity=capacity, ClientToken=token, **overrides
        )
    )


def ids_of(response: dict[str, Any]) -> list[str]:
    return [instance for pool in response["Instances"] for instance in pool["InstanceIds"]]


def instances(client: Client, ids: list[str]) -> list[dict[str, Any]]:
    reservations = client("ec2").describe_instances(InstanceIds=ids)["Reservations"]
    return [instance for reservation in reservations for instance in reservation["Instances"]]


def test_empty_group_launches_nothing(client: Client, group: Callable[..., str]) -> None:
    assert describe_group(client, group())["Instances"] == []


def test_launch_instances_returns_the_instances_and_their_pool(
    client: Client, group: Callable[..., str], network: Network
) -> None:
    response = launched(client, group(), 2)
    assert response["Errors"] == []
    (pool,) = response["Instances"]
    assert len(pool["InstanceIds"]) == 2
    assert (pool["InstanceType"], pool["SubnetId"]) == ("t3.medium", network.subnet)
    assert (pool["AvailabilityZone"], pool["MarketType"]) == ("us-east-1a", "on-demand")


def test_launch_instances_raises_the_desired_capacity(client: Client, group: Callable[..., str]) -> None:
    name = group()
    ids = ids_of(launched(client, name, 2))
    described = describe_group(client, name)
    assert described["DesiredCapacity"] == 2
    assert sorted(entry["InstanceId"] for entry in described["Instances"]) == sorted(ids)


def test_same_client_token_launches_once(client: Client, group: Callable[..., str]) -> None:
    name = group()
    assert ids_of(launched(client, name, 2, "again")) == ids_of(launched(client, name, 2, "again"))
    assert describe_group(client, name)["DesiredCapacity"] == 2


def test_client_token_with_other_parameters_is_refused(client: Client, group: Callable[..., str]) -> None:
    name = group()
    launched(client, name, 1, "once")
    with pytest.raises(client("autoscaling").exceptions.IdempotentParameterMismatchError):
        launched(client, name, 2, "once")


@pytest.mark.parametrize(("capacity", "maximum"), [(5, 4), (101, 200)])
def test_launch_above_the_maximum_size_is_refused(
    client: Client, group: Callable[..., str], capacity: int, maximum: int
) -> None:
    name = group(MaxSize=maximum)
    with pytest.raises(ClientError, match="ValidationError"):
        launched(client, name, capacity)
    assert describe_group(client, name)["Instances"] == []


def test_launch_error_of_ec2_is_in_the_response(client: Client, group: Callable[..., str], network: Network) -> None:
    zone = "us-east-1e"  # a zone without p4d
    other = client("ec2").create_subnet(VpcId=network.vpc, CidrBlock="10.0.240.0/24", AvailabilityZone=zone)
    name = group({"InstanceType": "p4d.24xlarge"}, VPCZoneIdentifier=other["Subnet"]["SubnetId"])
    response = launched(client, name, 1)
    assert response["Instances"] == []
    assert [entry["ErrorCode"] for entry in response["Errors"]] == ["Unsupported"]
    assert describe_group(client, name)["DesiredCapacity"] == 0


def test_launch_instances_requires_one_zone_per_call(
    client: Client, group: Callable[..., str], network: Network
) -> None:
    other = client("ec2").create_subnet(VpcId=network.vpc, CidrBlock="10.0.241.0/24", AvailabilityZone="us-east-1b")
    second = other["Subnet"]["SubnetId"]
    name = group(VPCZoneIdentifier=f"{network.subnet},{second}")
    with pytest.raises(ClientError, match="ValidationError"):
        launched(client, name, 1)
    ids = ids_of(launched(client, name, 2, SubnetIds=[second]))
    assert {entry["SubnetId"] for entry in instances(client, ids)} == {second}


def test_group_instance_has_the_interfaces_of_the_template(
    client: Client, group: Callable[..., str], network: Network
) -> None:
    parameters = [{**entry, "Groups": [network.group], "DeleteOnTermination": True} for entry in P4D_INTERFACES]
    name = group({"InstanceType": "p4d.24xlarge", "NetworkInterfaces": parameters})
    (instance,) = instances(client, ids_of(launched(client, name, 1)))
    describe = [
        {
            "NetworkCardIndex": entry["Attachment"]["NetworkCardIndex"],
            "DeviceIndex": entry["Attachment"]["DeviceIndex"],
            "InterfaceType": entry["InterfaceType"],
        }
        for entry in instance["NetworkInterfaces"]
    ]
    assert describe == P4D_INTERFACES
    assert all([g["GroupId"] for g in entry["Groups"]] == [network.group] for entry in instance["NetworkInterfaces"])
    assert [bool(entry["PrivateIpAddresses"]) for entry in instance["NetworkInterfaces"]] == [True] + [False] * 4
    assert instance["PrivateIpAddress"] == instance["NetworkInterfaces"][0]["PrivateIpAddress"]


def test_group_instance_has_the_other_settings_of_the_template(
    client: Client, group: Callable[..., str], network: Network, name: str
) -> None:
    client("ec2").create_placement_group(GroupName=name, Strategy="cluster")
    user_data = base64.b64encode(b"#cloud-config\n").decode()
    data = {
        "InstanceType": "p4d.24xlarge",
        "Placement": {"GroupName": name},
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "InstanceMetadataTags": "enabled"},
        "UserData": user_data,
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {"VolumeSize": 100, "VolumeType": "gp3", "Throughput": 500, "Encrypted": True},
            }
        ],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": [{"Key": "trainyard:role", "Value": kind}]}
            for kind in ("instance", "volume", "network-interface")
        ],
    }
    tag = {"ResourceId": name, "ResourceType": "auto-scaling-group", "Key": "Name", "Value": "worker"}
    group(data, Tags=[{**tag, "PropagateAtLaunch": True}, {**tag, "Key": "not-propagated", "PropagateAtLaunch": False}])
    (instance,) = instances(client, ids_of(launched(client, name, 1)))

    assert instance["Placement"]["GroupName"] == name
    assert instance["Placement"]["AvailabilityZone"] == "us-east-1a"
    assert instance["IamInstanceProfile"]["Arn"].endswith(":instance-profile/node-profile")
    options = instance["MetadataOptions"]
    assert (options["HttpTokens"], options["HttpPutResponseHopLimit"]) == ("required", 1)
    assert options["InstanceMetadataTags"] == "enabled"
    tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
    assert (tags["trainyard:role"], tags["Name"]) == ("instance", "worker")
    assert tags["aws:autoscaling:groupName"] == name
    assert "not-propagated" not in tags
    (device,) = instance["BlockDeviceMappings"]
    (volume,) = client("ec2").describe_volumes(VolumeIds=[device["Ebs"]["VolumeId"]])["Volumes"]
    assert (volume["Size"], volume["VolumeType"], volume["Encrypted"]) == (100, "gp3", True)
    assert volume["Throughput"] == 500
    assert volume["Tags"] == [{"Key": "trainyard:role", "Value": "volume"}]
    interface = instance["NetworkInterfaces"][0]["NetworkInterfaceId"]
    (described,) = client("ec2").describe_network_interfaces(NetworkInterfaceIds=[interface])["NetworkInterfaces"]
    assert described["TagSet"] == [{"Key": "trainyard:role", "Value": "network-interface"}]
    describe = client("ec2").describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")
    assert describe["UserData"]["Value"] == user_data


def by_auto_scaling(client: Client, group: Callable[..., str], data: dict[str, Any], network: Network) -> list[str]:
    return ids_of(launched(client, group(data), 1))


def by_ec2(client: Client, group: Callable[..., str], data: dict[str, Any], network: Network) -> list[str]:
    placed = [{**entry, "SubnetId": network.subnet} for entry in data.pop("NetworkInterfaces")]
    template_id = client("ec2").run_instances(
        ImageId=network.image, MinCount=1, MaxCount=1, NetworkInterfaces=placed, **data
    )
    return [entry["InstanceId"] for entry in template_id["Instances"]]


@pytest.mark.parametrize("launch", [by_auto_scaling, by_ec2])
def test_describe_instances_is_the_same_for_every_kind_of_launch(
    client: Client, group: Callable[..., str], network: Network, profile: str, name: str, launch: Any
) -> None:
    ec2 = client("ec2")
    placement = ec2.create_placement_group(GroupName=name, Strategy="cluster")["PlacementGroup"]["GroupId"]
    efa = ec2.create_security_group(GroupName=f"efa-{name}", Description="efa", VpcId=network.vpc)["GroupId"]
    expected_state = [
        {**entry, "Groups": [network.group, efa], "DeleteOnTermination": True} for entry in P4D_INTERFACES
    ]
    options = {"HttpTokens": "required", "HttpPutResponseHopLimit": 2, "InstanceMetadataTags": "enabled"}
    data = {
        "InstanceType": "p4d.24xlarge",
        "IamInstanceProfile": {"Name": profile},
        "NetworkInterfaces": expected_state,
        "Placement": {"GroupName": name},
        "MetadataOptions": options,
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "trainyard:role", "Value": "workers"}]}],
    }
    (instance,) = instances(client, launch(client, group, data, network))
    describe = instance["NetworkInterfaces"]
    places = [(entry["Attachment"]["NetworkCardIndex"], entry["Attachment"]["DeviceIndex"]) for entry in describe]
    assert places == [(entry["NetworkCardIndex"], entry["DeviceIndex"]) for entry in expected_state]
    assert [entry["InterfaceType"] for entry in describe] == [entry["InterfaceType"] for entry in expected_state]
    assert {entry["SubnetId"] for entry in describe} == {network.subnet}
    assert all(
        {instance_id["GroupId"] for instance_id in entry["Groups"]} == {network.group, efa} for entry in [*describe]
    )
    assert {instance_id["GroupId"] for instance_id in instance["SecurityGroups"]} == {network.group, efa}
    parameters = {"GroupName": name, "GroupId": placement, "AvailabilityZone": "us-east-1a", "Tenancy": "default"}
    assert instance["Placement"] == parameters
    assert instance["IamInstanceProfile"]["Arn"] == f"arn:aws:iam::123456789012:instance-profile/{profile}"
    assert options.items() <= instance["MetadataOptions"].items()
    assert {"Key": "trainyard:role", "Value": "workers"} in instance["Tags"]
    assert (instance["SubnetId"], instance["VpcId"]) == (network.subnet, network.vpc)


def test_group_instance_reports_the_template_version(
    client: Client, group: Callable[..., str], network: Network
) -> None:
    name = group()
    template = describe_group(client, name)["LaunchTemplate"]["LaunchTemplateId"]
    data = {"ImageId": network.image, "InstanceType": "t3.large"}
    client("ec2").create_launch_template_version(LaunchTemplateId=template, LaunchTemplateData=data)
    launched(client, name, 1)
    (member,) = describe_group(client, name)["Instances"]
    assert (member["InstanceType"], member["LaunchTemplate"]["Version"]) == ("t3.large", "2")


def test_addresses_are_from_the_configured_network(client: Client, aws: EmulatedAws, group: Callable[..., str]) -> None:
    described = instances(client, ids_of(launched(client, group(), 4)))
    addresses = {entry["PrivateIpAddress"] for entry in described}
    assert len(addresses) == 4
    assert all(ip_address(entry) in ADDRESSES for entry in addresses)
    everything = [entry.private_ip for entry in aws.instances()]
    assert len(everything) == len(set(everything))
    reserved = {str(ADDRESSES[0]), str(ADDRESSES[1]), str(ADDRESSES[-1])}  # the network, its router, its broadcast
    assert not reserved & set(everything)


def test_launch_fails_without_free_addresses(tmp_path: Path) -> None:
    with EmulatedAws.start(tmp_path, "127.77.9.0/30") as small:  # one host address next to the router
        session = small.session()
        ec2, ssm = (session.client(service, endpoint_url=small.endpoint) for service in ("ec2", "ssm"))
        image = ssm.get_parameter(Name=UBUNTU_PARAMETER)["Parameter"]["Value"]
        before = small.list_resources()
        with pytest.raises(ClientError, match="InsufficientFreeAddressesInSubnet"):
            ec2.run_instances(ImageId=image, InstanceType="t3.medium", MinCount=2, MaxCount=2)
        assert small.list_resources() == before


def test_desired_capacity_zero_terminates_all_instances(client: Client, group: Callable[..., str]) -> None:
    name = group()
    ids = ids_of(launched(client, name, 2))
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)
    assert {entry["State"]["Name"] for entry in instances(client, ids)} == {"terminated"}
    client("ec2").terminate_instances(InstanceIds=ids)
    assert describe_group(client, name)["Instances"] == []


def test_terminated_group_instance_is_replaced(client: Client, group: Callable[..., str]) -> None:
    name = group()
    ids = ids_of(launched(client, name, 2))
    client("ec2").terminate_instances(InstanceIds=ids[:1])
    remaining = [entry["InstanceId"] for entry in describe_group(client, name)["Instances"]]
    assert len(remaining) == 2
    assert ids[0] not in remaining
    assert ids[1] in remaining


def test_terminating_with_decrement_does_not_replace(client: Client, group: Callable[..., str]) -> None:
    name = group()
    ids = ids_of(launched(client, name, 2))
    client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=ids[0], ShouldDecrementDesiredCapacity=True
    )
    described = describe_group(client, name)
    assert (described["DesiredCapacity"], [entry["InstanceId"] for entry in described["Instances"]]) == (1, ids[1:])


def test_terminated_group_instance_retains_no_volume_or_interface(
    client: Client, aws: EmulatedAws, group: Callable[..., str], network: Network
) -> None:
    parameters = [{**entry, "Groups": [network.group]} for entry in P4D_INTERFACES]
    name = group({"InstanceType": "p4d.24xlarge", "NetworkInterfaces": parameters})
    before = set(aws.list_resources())
    launched(client, name, 1)
    assert len(set(aws.list_resources()) - before) == 1 + 5 + 1  # instance, interfaces, root volume
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)
    assert set(aws.list_resources()) - before == set()


def test_group_with_instances_is_deleted_only_with_force(client: Client, group: Callable[..., str]) -> None:
    name = group()
    launched(client, name, 1)
    with pytest.raises(ClientError, match="ResourceInUse"):
        client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name)
    client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
    described = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    assert described["AutoScalingGroups"] == []


def test_scheduled_actions_are_stored_per_group(
    client: Client, aws: EmulatedAws, group: Callable[..., str], name: str
) -> None:
    autoscaling = client("autoscaling")
    group()
    start = datetime.fromtimestamp(int(aws.now()), UTC) + timedelta(minutes=20)
    lease = {"AutoScalingGroupName": name, "ScheduledActionName": "lease"}
    autoscaling.put_scheduled_update_group_action(**lease, StartTime=start, MinSize=0, DesiredCapacity=0)
    (described,) = autoscaling.describe_scheduled_actions(AutoScalingGroupName=name)["ScheduledUpdateGroupActions"]
    assert (described["StartTime"], described["DesiredCapacity"], described["MinSize"]) == (start, 0, 0)
    autoscaling.put_scheduled_update_group_action(**lease, StartTime=start + timedelta(minutes=5), DesiredCapacity=0)
    (described,) = autoscaling.describe_scheduled_actions(AutoScalingGroupName=name)["ScheduledUpdateGroupActions"]
    assert described["StartTime"] == start + timedelta(minutes=5)
    autoscaling.delete_scheduled_action(**lease)
    assert autoscaling.describe_scheduled_actions(AutoScalingGroupName=name)["ScheduledUpdateGroupActions"] == []


def test_unknown_group_is_a_validation_error(client: Client) -> None:
    for call in (
        lambda: client("autoscaling").set_desired_capacity(AutoScalingGroupName="none", DesiredCapacity=0),
        lambda: client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName="none"),
        lambda: launched(client, "none", 1),
    ):
        with pytest.raises(ClientError, match="ValidationError"):
            call()


def test_desired_capacity_above_the_maximum_size_is_refused(client: Client, group: Callable[..., str]) -> None:
    with pytest.raises(ClientError, match="above max value 4"):
        client("autoscaling").set_desired_capacity(AutoScalingGroupName=group(), DesiredCapacity=5)
