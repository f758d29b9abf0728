"""Auto Scaling groups and LaunchInstances, as a launch of a cluster uses them."""

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import UBUNTU, Client, Network

P4D_INTERFACES = [{"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}] + [
    {"NetworkCardIndex": card, "DeviceIndex": 1 if card == 0 else 0, "InterfaceType": "efa-only"} for card in range(4)
]


def described(client: Client, group: str) -> dict[str, Any]:
    found = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[group])["AutoScalingGroups"]
    return dict(found[0])


def launched(client: Client, group: str, capacity: int, token: str = "first", **given: Any) -> dict[str, Any]:
    return dict(
        client("autoscaling").launch_instances(
            AutoScalingGroupName=group, RequestedCapacity=capacity, ClientToken=token, **given
        )
    )


def ids_of(answer: dict[str, Any]) -> list[str]:
    return [instance for pool in answer["Instances"] for instance in pool["InstanceIds"]]


def instances(client: Client, ids: list[str]) -> list[dict[str, Any]]:
    reservations = client("ec2").describe_instances(InstanceIds=ids)["Reservations"]
    return [instance for reservation in reservations for instance in reservation["Instances"]]


def test_a_group_made_empty_launches_nothing(client: Client, group: Callable[..., str]) -> None:
    assert described(client, group())["Instances"] == []


def test_launch_instances_answers_with_the_instances_and_their_pool(
    client: Client, group: Callable[..., str], network: Network
) -> None:
    answer = launched(client, group(), 2)
    assert answer["Errors"] == []
    (pool,) = answer["Instances"]
    assert len(pool["InstanceIds"]) == 2
    assert (pool["InstanceType"], pool["SubnetId"]) == ("t3.medium", network.subnet)
    assert (pool["AvailabilityZone"], pool["MarketType"]) == ("us-east-1a", "on-demand")


def test_launch_instances_raises_the_desired_capacity_by_what_it_launched(
    client: Client, group: Callable[..., str]
) -> None:
    name = group()
    ids = ids_of(launched(client, name, 2))
    found = described(client, name)
    assert found["DesiredCapacity"] == 2
    assert sorted(each["InstanceId"] for each in found["Instances"]) == sorted(ids)


def test_the_same_client_token_launches_once(client: Client, group: Callable[..., str]) -> None:
    name = group()
    assert ids_of(launched(client, name, 2, "again")) == ids_of(launched(client, name, 2, "again"))
    assert described(client, name)["DesiredCapacity"] == 2


def test_a_client_token_with_other_parameters_is_refused(client: Client, group: Callable[..., str]) -> None:
    name = group()
    launched(client, name, 1, "once")
    with pytest.raises(client("autoscaling").exceptions.IdempotentParameterMismatchError):
        launched(client, name, 2, "once")


@pytest.mark.parametrize(("capacity", "most"), [(5, 4), (101, 200)])
def test_a_launch_above_the_maximum_is_refused(
    client: Client, group: Callable[..., str], capacity: int, most: int
) -> None:
    name = group(MaxSize=most)
    with pytest.raises(ClientError, match="ValidationError"):
        launched(client, name, capacity)
    assert described(client, name)["Instances"] == []


def test_what_ec2_refuses_comes_as_an_error_and_launches_nothing(
    client: Client, group: Callable[..., str], network: Network
) -> None:
    zone = "us-east-1e"  # it offers no p4d
    other = client("ec2").create_subnet(VpcId=network.vpc, CidrBlock="10.0.240.0/24", AvailabilityZone=zone)
    name = group({"InstanceType": "p4d.24xlarge"}, VPCZoneIdentifier=other["Subnet"]["SubnetId"])
    answer = launched(client, name, 1)
    assert answer["Instances"] == []
    assert [each["ErrorCode"] for each in answer["Errors"]] == ["Unsupported"]
    assert described(client, name)["DesiredCapacity"] == 0


def test_a_group_of_several_zones_is_launched_one_zone_a_call(
    client: Client, group: Callable[..., str], network: Network
) -> None:
    other = client("ec2").create_subnet(VpcId=network.vpc, CidrBlock="10.0.241.0/24", AvailabilityZone="us-east-1b")
    second = other["Subnet"]["SubnetId"]
    name = group(VPCZoneIdentifier=f"{network.subnet},{second}")
    with pytest.raises(ClientError, match="ValidationError"):
        launched(client, name, 1)
    ids = ids_of(launched(client, name, 2, SubnetIds=[second]))
    assert {each["SubnetId"] for each in instances(client, ids)} == {second}


def test_a_member_has_the_interfaces_that_its_template_asks(
    client: Client, group: Callable[..., str], network: Network
) -> None:
    asked = [{**each, "Groups": [network.group], "DeleteOnTermination": True} for each in P4D_INTERFACES]
    name = group({"InstanceType": "p4d.24xlarge", "NetworkInterfaces": asked})
    (instance,) = instances(client, ids_of(launched(client, name, 1)))
    shown = [
        {
            "NetworkCardIndex": each["Attachment"]["NetworkCardIndex"],
            "DeviceIndex": each["Attachment"]["DeviceIndex"],
            "InterfaceType": each["InterfaceType"],
        }
        for each in instance["NetworkInterfaces"]
    ]
    assert shown == P4D_INTERFACES
    assert all([g["GroupId"] for g in each["Groups"]] == [network.group] for each in instance["NetworkInterfaces"])
    assert [bool(each["PrivateIpAddresses"]) for each in instance["NetworkInterfaces"]] == [True] + [False] * 4
    assert instance["PrivateIpAddress"] == instance["NetworkInterfaces"][0]["PrivateIpAddress"]


def test_a_member_has_what_else_its_template_asks(
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
            {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "VolumeType": "gp3", "Encrypted": True}}
        ],
        "TagSpecifications": [
            {"ResourceType": kind, "Tags": [{"Key": "trainyard:role", "Value": kind}]}
            for kind in ("instance", "volume", "network-interface")
        ],
    }
    own = {"ResourceId": name, "ResourceType": "auto-scaling-group", "Key": "Name", "Value": "worker"}
    group(data, Tags=[{**own, "PropagateAtLaunch": True}, {**own, "Key": "unseen", "PropagateAtLaunch": False}])
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
    assert "unseen" not in tags
    (device,) = instance["BlockDeviceMappings"]
    (volume,) = client("ec2").describe_volumes(VolumeIds=[device["Ebs"]["VolumeId"]])["Volumes"]
    assert (volume["Size"], volume["VolumeType"], volume["Encrypted"]) == (100, "gp3", True)
    assert volume["Tags"] == [{"Key": "trainyard:role", "Value": "volume"}]
    interface = instance["NetworkInterfaces"][0]["NetworkInterfaceId"]
    (found,) = client("ec2").describe_network_interfaces(NetworkInterfaceIds=[interface])["NetworkInterfaces"]
    assert found["TagSet"] == [{"Key": "trainyard:role", "Value": "network-interface"}]
    shown = client("ec2").describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")
    assert shown["UserData"]["Value"] == user_data


def by_group(client: Client, group: Callable[..., str], data: dict[str, Any], network: Network) -> list[str]:
    return ids_of(launched(client, group(data), 1))


def by_ec2(client: Client, group: Callable[..., str], data: dict[str, Any], network: Network) -> list[str]:
    placed = [{**each, "SubnetId": network.subnet} for each in data.pop("NetworkInterfaces")]
    made = client("ec2").run_instances(ImageId=network.image, MinCount=1, MaxCount=1, NetworkInterfaces=placed, **data)
    return [each["InstanceId"] for each in made["Instances"]]


@pytest.mark.parametrize("launch", [by_group, by_ec2])
def test_describe_instances_shows_all_that_was_asked_however_it_was_launched(
    client: Client, group: Callable[..., str], network: Network, profile: str, name: str, launch: Any
) -> None:
    ec2 = client("ec2")
    placement = ec2.create_placement_group(GroupName=name, Strategy="cluster")["PlacementGroup"]["GroupId"]
    efa = ec2.create_security_group(GroupName=f"efa-{name}", Description="efa", VpcId=network.vpc)["GroupId"]
    wanted = [{**each, "Groups": [network.group, efa], "DeleteOnTermination": True} for each in P4D_INTERFACES]
    options = {"HttpTokens": "required", "HttpPutResponseHopLimit": 2, "InstanceMetadataTags": "enabled"}
    data = {
        "InstanceType": "p4d.24xlarge",
        "IamInstanceProfile": {"Name": profile},
        "NetworkInterfaces": wanted,
        "Placement": {"GroupName": name},
        "MetadataOptions": options,
        "InstanceMarketOptions": {"MarketType": "spot"},
        "TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "trainyard:role", "Value": "workers"}]}],
    }
    (instance,) = instances(client, launch(client, group, data, network))
    shown = instance["NetworkInterfaces"]
    places = [(each["Attachment"]["NetworkCardIndex"], each["Attachment"]["DeviceIndex"]) for each in shown]
    assert places == [(each["NetworkCardIndex"], each["DeviceIndex"]) for each in wanted]
    assert [each["InterfaceType"] for each in shown] == [each["InterfaceType"] for each in wanted]
    assert {each["SubnetId"] for each in shown} == {network.subnet}
    assert all({one["GroupId"] for one in each["Groups"]} == {network.group, efa} for each in [*shown])
    assert {one["GroupId"] for one in instance["SecurityGroups"]} == {network.group, efa}
    asked = {"GroupName": name, "GroupId": placement, "AvailabilityZone": "us-east-1a", "Tenancy": "default"}
    assert instance["Placement"] == asked
    assert instance["IamInstanceProfile"]["Arn"] == f"arn:aws:iam::123456789012:instance-profile/{profile}"
    assert options.items() <= instance["MetadataOptions"].items()
    assert {"Key": "trainyard:role", "Value": "workers"} in instance["Tags"]
    assert (instance["SubnetId"], instance["VpcId"]) == (network.subnet, network.vpc)
    assert instance["InstanceLifecycle"] == "spot"


def test_a_member_tells_the_template_version_that_it_was_launched_from(
    client: Client, group: Callable[..., str], network: Network
) -> None:
    name = group()
    template = described(client, name)["LaunchTemplate"]["LaunchTemplateId"]
    data = {"ImageId": network.image, "InstanceType": "t3.large"}
    client("ec2").create_launch_template_version(LaunchTemplateId=template, LaunchTemplateData=data)
    launched(client, name, 1)
    (member,) = described(client, name)["Instances"]
    assert (member["InstanceType"], member["LaunchTemplate"]["Version"]) == ("t3.large", "2")


def test_addresses_come_from_the_given_network_once_each(
    client: Client, aws: EmulatedAws, group: Callable[..., str]
) -> None:
    found = instances(client, ids_of(launched(client, group(), 4)))
    addresses = {each["PrivateIpAddress"] for each in found}
    assert len(addresses) == 4
    assert all(each.startswith("127.77.5.") for each in addresses)
    everything = [each.private_ip for each in aws.instances()]
    assert len(everything) == len(set(everything))
    assert not {"127.77.5.0", "127.77.5.1", "127.77.5.255"} & set(everything)


def test_without_addresses_left_nothing_is_launched(tmp_path: Path) -> None:
    with EmulatedAws.start(tmp_path, "127.77.9.0/30") as small:  # it has one host beside the router
        session = boto3.Session("AKIAREHEARSALOPERATE", "rehearsal", region_name="us-east-1")
        ec2, ssm = (session.client(service, endpoint_url=small.endpoint) for service in ("ec2", "ssm"))
        image = ssm.get_parameter(Name=UBUNTU)["Parameter"]["Value"]
        before = small.dump()
        with pytest.raises(ClientError, match="InsufficientFreeAddressesInSubnet"):
            ec2.run_instances(ImageId=image, InstanceType="t3.medium", MinCount=2, MaxCount=2)
        assert small.dump() == before


def test_desired_capacity_zero_ends_the_members_for_good(client: Client, group: Callable[..., str]) -> None:
    name = group()
    ids = ids_of(launched(client, name, 2))
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)
    assert {each["State"]["Name"] for each in instances(client, ids)} == {"terminated"}
    client("ec2").terminate_instances(InstanceIds=ids)
    assert described(client, name)["Instances"] == []


def test_a_member_that_was_terminated_is_replaced_while_capacity_is_desired(
    client: Client, group: Callable[..., str]
) -> None:
    name = group()
    ids = ids_of(launched(client, name, 2))
    client("ec2").terminate_instances(InstanceIds=ids[:1])
    left = [each["InstanceId"] for each in described(client, name)["Instances"]]
    assert len(left) == 2
    assert ids[0] not in left
    assert ids[1] in left


def test_terminating_a_member_with_decrement_is_not_made_good(client: Client, group: Callable[..., str]) -> None:
    name = group()
    ids = ids_of(launched(client, name, 2))
    client("autoscaling").terminate_instance_in_auto_scaling_group(
        InstanceId=ids[0], ShouldDecrementDesiredCapacity=True
    )
    found = described(client, name)
    assert (found["DesiredCapacity"], [each["InstanceId"] for each in found["Instances"]]) == (1, ids[1:])


def test_a_terminated_member_leaves_no_volume_and_no_interface(
    client: Client, aws: EmulatedAws, group: Callable[..., str], network: Network
) -> None:
    asked = [{**each, "Groups": [network.group]} for each in P4D_INTERFACES]
    name = group({"InstanceType": "p4d.24xlarge", "NetworkInterfaces": asked})
    before = set(aws.dump())
    launched(client, name, 1)
    assert len(set(aws.dump()) - before) == 1 + 5 + 1  # instance, interfaces, root volume
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=name, DesiredCapacity=0)
    assert set(aws.dump()) - before == set()


def test_a_group_with_members_is_not_deleted_unless_forced(client: Client, group: Callable[..., str]) -> None:
    name = group()
    launched(client, name, 1)
    with pytest.raises(ClientError, match="ResourceInUse"):
        client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name)
    client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=name, ForceDelete=True)
    found = client("autoscaling").describe_auto_scaling_groups(AutoScalingGroupNames=[name])
    assert found["AutoScalingGroups"] == []


def test_scheduled_actions_are_kept_per_group(
    client: Client, aws: EmulatedAws, group: Callable[..., str], name: str
) -> None:
    autoscaling = client("autoscaling")
    group()
    start = datetime.fromtimestamp(int(aws.now()), UTC) + timedelta(minutes=20)
    lease = {"AutoScalingGroupName": name, "ScheduledActionName": "lease"}
    autoscaling.put_scheduled_update_group_action(**lease, StartTime=start, MinSize=0, DesiredCapacity=0)
    (found,) = autoscaling.describe_scheduled_actions(AutoScalingGroupName=name)["ScheduledUpdateGroupActions"]
    assert (found["StartTime"], found["DesiredCapacity"], found["MinSize"]) == (start, 0, 0)
    autoscaling.put_scheduled_update_group_action(**lease, StartTime=start + timedelta(minutes=5), DesiredCapacity=0)
    (found,) = autoscaling.describe_scheduled_actions(AutoScalingGroupName=name)["ScheduledUpdateGroupActions"]
    assert found["StartTime"] == start + timedelta(minutes=5)
    autoscaling.delete_scheduled_action(**lease)
    assert autoscaling.describe_scheduled_actions(AutoScalingGroupName=name)["ScheduledUpdateGroupActions"] == []


def test_an_unknown_group_is_a_validation_error(client: Client) -> None:
    for call in (
        lambda: client("autoscaling").set_desired_capacity(AutoScalingGroupName="none", DesiredCapacity=0),
        lambda: client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName="none"),
        lambda: launched(client, "none", 1),
    ):
        with pytest.raises(ClientError, match="ValidationError"):
            call()


def test_desired_capacity_above_the_maximum_is_refused(client: Client, group: Callable[..., str]) -> None:
    with pytest.raises(ClientError, match="above max value 4"):
        client("autoscaling").set_desired_capacity(AutoScalingGroupName=group(), DesiredCapacity=5)
