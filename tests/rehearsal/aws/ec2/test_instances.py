"""RunInstances and launch templates."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client, Network

EFA = {"NetworkCardIndex": 0, "DeviceIndex": 1, "InterfaceType": "efa-only"}
PLAIN = {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}


def run(client: Client, **asked: Any) -> list[dict[str, Any]]:
    return list(client("ec2").run_instances(MinCount=1, MaxCount=1, **asked)["Instances"])


def shown(client: Client, instance: dict[str, Any]) -> dict[str, Any]:
    found = client("ec2").describe_instances(InstanceIds=[instance["InstanceId"]])["Reservations"]
    return dict(found[0]["Instances"][0])


def test_run_instances_takes_what_the_launch_template_asks(
    client: Client, template: Callable[..., str], network: Network
) -> None:
    interface = {**PLAIN, "SubnetId": network.subnet, "Groups": [network.group]}
    made = template(NetworkInterfaces=[interface], MetadataOptions={"HttpTokens": "required"})
    (instance,) = run(client, LaunchTemplate={"LaunchTemplateId": made})
    found = shown(client, instance)
    assert (found["InstanceType"], found["ImageId"]) == ("t3.medium", network.image)
    assert (found["SubnetId"], found["MetadataOptions"]["HttpTokens"]) == (network.subnet, "required")
    tags = {tag["Key"]: tag["Value"] for tag in found["Tags"]}
    assert tags["aws:ec2launchtemplate:id"] == made


def test_what_the_request_asks_goes_before_the_template(
    client: Client, template: Callable[..., str], network: Network
) -> None:
    first = [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "1"}]}]
    second = [{"ResourceType": "instance", "Tags": [{"Key": "b", "Value": "2"}]}]
    made = template(NetworkInterfaces=None, TagSpecifications=first)
    given = {"InstanceType": "t3.large", "SubnetId": network.subnet, "TagSpecifications": second}
    (instance,) = run(client, LaunchTemplate={"LaunchTemplateId": made}, **given)
    found = shown(client, instance)
    tags = {tag["Key"]: tag["Value"] for tag in found["Tags"]}
    assert (found["InstanceType"], tags["a"], tags["b"]) == ("t3.large", "1", "2")


def test_a_new_version_of_a_template_is_launched_with_its_own_user_data(
    client: Client, template: Callable[..., str], network: Network, aws: EmulatedAws
) -> None:
    made = template(NetworkInterfaces=None, UserData="b2xk")
    data = {"ImageId": network.image, "InstanceType": "t3.medium", "UserData": "bmV3"}
    client("ec2").create_launch_template_version(LaunchTemplateId=made, LaunchTemplateData=data)
    chosen = {"LaunchTemplateId": made, "Version": "$Latest"}
    (instance,) = run(client, LaunchTemplate=chosen, SubnetId=network.subnet)
    assert [each.user_data for each in aws.instances() if each.id == instance["InstanceId"]] == ["bmV3"]


def test_the_template_s_own_tags_are_not_in_its_data(client: Client, network: Network, name: str) -> None:
    own = [{"ResourceType": "launch-template", "Tags": [{"Key": "Name", "Value": "workers"}]}]
    ec2 = client("ec2")
    ec2.create_launch_template(
        LaunchTemplateName=name, LaunchTemplateData={"ImageId": network.image}, TagSpecifications=own
    )
    (version,) = ec2.describe_launch_template_versions(LaunchTemplateName=name)["LaunchTemplateVersions"]
    assert version["LaunchTemplateData"] == {"ImageId": network.image}
    (made,) = ec2.describe_launch_templates(LaunchTemplateNames=[name])["LaunchTemplates"]
    assert made["Tags"] == own[0]["Tags"]


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "groups beside interfaces": ("InvalidParameterCombination", {"SecurityGroupIds": ["GROUP"]}),
    "several interfaces, one public": (
        "InvalidParameterCombination",
        {"InstanceType": "p4d.24xlarge", "NetworkInterfaces": [{**PLAIN, "AssociatePublicIpAddress": True}, EFA]},
    ),
    "EFA on a type without it": ("InvalidParameterCombination", {"NetworkInterfaces": [PLAIN, EFA]}),
    "more EFA than the type bears": (
        "AttachmentLimitExceeded",
        {
            "InstanceType": "p4d.24xlarge",
            "NetworkInterfaces": [PLAIN, *({**EFA, "DeviceIndex": index} for index in range(1, 6))],
        },
    ),
    "a card that the type lacks": (
        "InvalidParameterValue",
        {"NetworkInterfaces": [PLAIN, {**PLAIN, "NetworkCardIndex": 1}]},
    ),
    "no image of this id": ("InvalidAMIID.NotFound", {"ImageId": "ami-00000000000000000"}),
    "no instance profile of this name": ("InvalidParameterValue", {"IamInstanceProfile": {"Name": "none"}}),
    "no placement group of this name": ("InvalidPlacementGroup.Unknown", {"Placement": {"GroupName": "none"}}),
    "a root volume smaller than the image": (
        "InvalidBlockDeviceMapping",
        {"BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 4}}]},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_ec2_refuses(
    client: Client, template: Callable[..., str], network: Network, aws: EmulatedAws, case: str
) -> None:
    code, data = REFUSED[case]
    if "SecurityGroupIds" in data:
        data = {**data, "SecurityGroupIds": [network.group]}
    made = template(**data)
    before = aws.dump()
    with pytest.raises(ClientError) as caught:
        run(client, LaunchTemplate={"LaunchTemplateId": made})
    assert caught.value.response["Error"]["Code"] == code
    assert aws.dump() == before


def test_a_template_that_ec2_would_refuse_is_made_with_a_warning(client: Client, network: Network, name: str) -> None:
    data = {"ImageId": network.image, "InstanceType": "t3.medium", "NetworkInterfaces": [PLAIN, EFA]}
    made = client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
    assert [each["Code"] for each in made["Warning"]["Errors"]] == ["InvalidParameterCombination"]


def test_a_sound_template_is_made_without_warning(client: Client, network: Network, name: str) -> None:
    data = {"ImageId": network.image, "InstanceType": "p4d.24xlarge", "NetworkInterfaces": [PLAIN, EFA]}
    made = client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
    assert "Warning" not in made


def test_no_group_is_made_of_groups_beside_interfaces(
    client: Client, group: Callable[..., str], network: Network
) -> None:
    with pytest.raises(ClientError, match="InvalidQueryParameter"):
        group({"SecurityGroupIds": [network.group]})


def test_no_group_is_made_of_efa_on_a_type_without_it(client: Client, group: Callable[..., str]) -> None:
    with pytest.raises(ClientError, match="valid fully-formed launch template"):
        group({"NetworkInterfaces": [PLAIN, EFA]})


def test_groups_of_another_vpc_are_refused(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    foreign = ec2.create_security_group(GroupName=name, Description="x", VpcId=vpc)["GroupId"]
    with pytest.raises(ClientError, match="belong to different networks"):
        run(
            client,
            ImageId=network.image,
            InstanceType="t3.medium",
            SubnetId=network.subnet,
            SecurityGroupIds=[foreign],
        )


def test_an_address_is_given_once(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    subnet = ec2.create_subnet(VpcId=network.vpc, CidrBlock="10.0.250.0/24", AvailabilityZone="us-east-1a")
    where = {"SubnetId": subnet["Subnet"]["SubnetId"], "PrivateIpAddress": "10.0.250.20"}
    (first,) = run(client, ImageId=network.image, InstanceType="t3.medium", **where)
    with pytest.raises(ClientError, match=r"InvalidIPAddress\.InUse"):
        run(client, ImageId=network.image, InstanceType="t3.medium", **where)
    ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    run(client, ImageId=network.image, InstanceType="t3.medium", **where)


def test_a_launch_that_fails_half_way_leaves_nothing(client: Client, network: Network, aws: EmulatedAws) -> None:
    before = aws.dump()
    volume = {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 10, "SnapshotId": "snap-00000000000000000"}}
    with pytest.raises(ClientError, match=r"InvalidSnapshot\.NotFound"):
        run(
            client,
            ImageId=network.image,
            InstanceType="t3.medium",
            SubnetId=network.subnet,
            BlockDeviceMappings=[volume],
        )
    assert aws.dump() == before


def test_what_no_instance_here_would_have_is_an_error(client: Client, network: Network) -> None:
    with pytest.raises(ClientError, match="a launch with CpuOptions"):
        run(client, ImageId=network.image, InstanceType="t3.medium", CpuOptions={"CoreCount": 1, "ThreadsPerCore": 1})


def test_what_no_group_here_would_do_is_an_error(client: Client, group: Callable[..., str]) -> None:
    with pytest.raises(ClientError, match="a group with MaxInstanceLifetime"):
        group(MaxInstanceLifetime=86400)


def test_a_client_token_runs_once(client: Client, network: Network, name: str) -> None:
    asked = {"ImageId": network.image, "InstanceType": "t3.large", "SubnetId": network.subnet, "ClientToken": name}
    assert run(client, **asked)[0]["InstanceId"] == run(client, **asked)[0]["InstanceId"]


def test_the_default_root_volume_is_the_image_s(client: Client, network: Network) -> None:
    (instance,) = run(client, ImageId=network.image, InstanceType="t3.medium", SubnetId=network.subnet)
    (device,) = shown(client, instance)["BlockDeviceMappings"]
    assert (device["DeviceName"], device["Ebs"]["DeleteOnTermination"]) == ("/dev/sda1", True)
    (volume,) = client("ec2").describe_volumes(VolumeIds=[device["Ebs"]["VolumeId"]])["Volumes"]
    assert (volume["Size"], volume["VolumeType"]) == (8, "gp3")


def test_each_interface_has_its_own_groups(client: Client, network: Network, name: str) -> None:
    other = client("ec2").create_security_group(GroupName=name, Description="efa", VpcId=network.vpc)["GroupId"]
    interfaces = [
        {**PLAIN, "SubnetId": network.subnet, "Groups": [network.group]},
        {**EFA, "SubnetId": network.subnet, "Groups": [other]},
    ]
    (instance,) = run(client, ImageId=network.image, InstanceType="p4d.24xlarge", NetworkInterfaces=interfaces)
    found = shown(client, instance)
    groups = [[group["GroupId"] for group in each["Groups"]] for each in found["NetworkInterfaces"]]
    assert groups == [[network.group], [other]]
    assert [group["GroupId"] for group in found["SecurityGroups"]] == [network.group]


@pytest.mark.parametrize(
    "parameter",
    [
        "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
    ],
)
def test_published_images_are_there(client: Client, parameter: str) -> None:
    image = client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
    (found,) = client("ec2").describe_images(ImageIds=[image])["Images"]
    assert (found["Architecture"], found["VirtualizationType"]) == ("x86_64", "hvm")
    assert (found["RootDeviceName"], found["RootDeviceType"], found["State"]) == ("/dev/sda1", "ebs", "available")


def test_a_placement_group_in_use_is_kept(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    ec2.create_placement_group(GroupName=name, Strategy="cluster")
    (instance,) = run(
        client,
        ImageId=network.image,
        InstanceType="c7i.xlarge",
        SubnetId=network.subnet,
        Placement={"GroupName": name},
    )
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.InUse"):
        ec2.delete_placement_group(GroupName=name)
    ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    ec2.delete_placement_group(GroupName=name)
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.Unknown"):
        ec2.describe_placement_groups(GroupNames=[name])


def test_a_placement_group_shows_what_it_was_made_with(client: Client, name: str) -> None:
    ec2 = client("ec2")
    tags = [{"Key": "Name", "Value": name}]
    specification = [{"ResourceType": "placement-group", "Tags": tags}]
    made = ec2.create_placement_group(GroupName=name, Strategy="cluster", TagSpecifications=specification)
    (found,) = ec2.describe_placement_groups(Filters=[{"Name": "tag:Name", "Values": [name]}])["PlacementGroups"]
    assert found == made["PlacementGroup"]
    assert (found["GroupName"], found["Strategy"], found["State"]) == (name, "cluster", "available")
    assert found["Tags"] == tags
    ec2.create_tags(Resources=[found["GroupId"]], Tags=[{"Key": "more", "Value": "1"}])
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.Duplicate"):
        ec2.create_placement_group(GroupName=name)


def test_a_cluster_placement_group_takes_no_burstable_type(client: Client, network: Network, name: str) -> None:
    client("ec2").create_placement_group(GroupName=name, Strategy="cluster")
    with pytest.raises(ClientError, match="InvalidParameterCombination"):
        run(
            client,
            ImageId=network.image,
            InstanceType="t3.medium",
            SubnetId=network.subnet,
            Placement={"GroupName": name},
        )


def test_the_catalog_s_types_are_described(client: Client) -> None:
    types = ["t3.medium", "t3.large", "c7i.xlarge", "p4d.24xlarge"]
    found = client("ec2").describe_instance_types(InstanceTypes=types)["InstanceTypes"]
    assert {each["InstanceType"] for each in found} == set(types)


@pytest.mark.parametrize(("behavior", "state"), [("terminate", "terminated"), ("stop", "stopped")])
def test_an_instance_that_switches_itself_off_ends_as_it_was_launched_to(
    client: Client, network: Network, aws: EmulatedAws, behavior: str, state: str
) -> None:
    (made,) = client("ec2").run_instances(
        ImageId=network.image,
        InstanceType="t3.medium",
        MinCount=1,
        MaxCount=1,
        SubnetId=network.subnet,
        InstanceInitiatedShutdownBehavior=behavior,
    )["Instances"]
    aws.switched_off(made["InstanceId"])
    assert {one.id: one.state for one in aws.instances()}[made["InstanceId"]] == state


def test_what_is_no_instance_can_not_switch_itself_off(aws: EmulatedAws) -> None:
    with pytest.raises(ValueError, match="no instance i-none"):
        aws.switched_off("i-none")
