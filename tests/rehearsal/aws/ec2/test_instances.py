"""RunInstances and launch templates."""

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client, Network

EFA = {"NetworkCardIndex": 0, "DeviceIndex": 1, "InterfaceType": "efa-only"}
PLAIN = {"NetworkCardIndex": 0, "DeviceIndex": 0, "InterfaceType": "interface"}


def run(client: Client, **parameters: Any) -> list[dict[str, Any]]:
    return list(client("ec2").run_instances(MinCount=1, MaxCount=1, **parameters)["Instances"])


def describe(client: Client, instance: dict[str, Any]) -> dict[str, Any]:
    described = client("ec2").describe_instances(InstanceIds=[instance["InstanceId"]])["Reservations"]
    return dict(described[0]["Instances"][0])


def test_run_instances_applies_the_launch_template(
    client: Client, template: Callable[..., str], network: Network
) -> None:
    interface = {**PLAIN, "SubnetId": network.subnet, "Groups": [network.group]}
    template_id = template(NetworkInterfaces=[interface], MetadataOptions={"HttpTokens": "required"})
    (instance,) = run(client, LaunchTemplate={"LaunchTemplateId": template_id})
    described = describe(client, instance)
    assert (described["InstanceType"], described["ImageId"]) == ("t3.medium", network.image)
    assert (described["SubnetId"], described["MetadataOptions"]["HttpTokens"]) == (network.subnet, "required")
    tags = {tag["Key"]: tag["Value"] for tag in described["Tags"]}
    assert tags["aws:ec2launchtemplate:id"] == template_id


def test_request_parameters_override_the_template(
    client: Client, template: Callable[..., str], network: Network
) -> None:
    first = [{"ResourceType": "instance", "Tags": [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "1"}]}]
    second = [{"ResourceType": "instance", "Tags": [{"Key": "b", "Value": "2"}]}]
    template_id = template(NetworkInterfaces=None, TagSpecifications=first)
    overrides = {"InstanceType": "t3.large", "SubnetId": network.subnet, "TagSpecifications": second}
    (instance,) = run(client, LaunchTemplate={"LaunchTemplateId": template_id}, **overrides)
    described = describe(client, instance)
    tags = {tag["Key"]: tag["Value"] for tag in described["Tags"]}
    assert (described["InstanceType"], tags["a"], tags["b"]) == ("t3.large", "1", "2")


def test_new_template_version_is_launched_with_the_user_data(
    client: Client, template: Callable[..., str], network: Network, aws: EmulatedAws
) -> None:
    template_id = template(NetworkInterfaces=None, UserData="b2xk")
    data = {"ImageId": network.image, "InstanceType": "t3.medium", "UserData": "bmV3"}
    client("ec2").create_launch_template_version(LaunchTemplateId=template_id, LaunchTemplateData=data)
    template_version = {"LaunchTemplateId": template_id, "Version": "$Latest"}
    (instance,) = run(client, LaunchTemplate=template_version, SubnetId=network.subnet)
    assert [entry.user_data for entry in aws.instances() if entry.id == instance["InstanceId"]] == ["bmV3"]


def test_tags_of_the_template_are_not_in_the_data(client: Client, network: Network, name: str) -> None:
    tag_specifications = [{"ResourceType": "launch-template", "Tags": [{"Key": "Name", "Value": "workers"}]}]
    ec2 = client("ec2")
    ec2.create_launch_template(
        LaunchTemplateName=name, LaunchTemplateData={"ImageId": network.image}, TagSpecifications=tag_specifications
    )
    (version,) = ec2.describe_launch_template_versions(LaunchTemplateName=name)["LaunchTemplateVersions"]
    assert version["LaunchTemplateData"] == {"ImageId": network.image}
    (template_id,) = ec2.describe_launch_templates(LaunchTemplateNames=[name])["LaunchTemplates"]
    assert template_id["Tags"] == tag_specifications[0]["Tags"]


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "security groups together with interfaces": ("InvalidParameterCombination", {"SecurityGroupIds": ["GROUP"]}),
    "several interfaces, one with a public address": (
        "InvalidParameterCombination",
        {"InstanceType": "p4d.24xlarge", "NetworkInterfaces": [{**PLAIN, "AssociatePublicIpAddress": True}, EFA]},
    ),
    "EFA on a type without it": ("InvalidParameterCombination", {"NetworkInterfaces": [PLAIN, EFA]}),
    "more EFA interfaces than the type supports": (
        "AttachmentLimitExceeded",
        {
            "InstanceType": "p4d.24xlarge",
            "NetworkInterfaces": [PLAIN, *({**EFA, "DeviceIndex": index} for index in range(1, 6))],
        },
    ),
    "a network card that the type does not have": (
        "InvalidParameterValue",
        {"NetworkInterfaces": [PLAIN, {**PLAIN, "NetworkCardIndex": 1}]},
    ),
    "CPU credits on a type that is not burstable": (
        "InstanceCreditSpecification.NotSupported",
        {"InstanceType": "p4d.24xlarge", "CreditSpecification": {"CpuCredits": "standard"}},
    ),
    "an unknown CPU credit option": ("InvalidParameterValue", {"CreditSpecification": {"CpuCredits": "endless"}}),
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
    template_id = template(**data)
    before = aws.list_resources()
    with pytest.raises(ClientError) as caught:
        run(client, LaunchTemplate={"LaunchTemplateId": template_id})
    assert caught.value.response["Error"]["Code"] == code
    assert aws.list_resources() == before


def test_invalid_template_is_created_with_a_warning(client: Client, network: Network, name: str) -> None:
    data = {"ImageId": network.image, "InstanceType": "t3.medium", "NetworkInterfaces": [PLAIN, EFA]}
    template_id = client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
    assert [entry["Code"] for entry in template_id["Warning"]["Errors"]] == ["InvalidParameterCombination"]


def test_valid_template_is_created_without_a_warning(client: Client, network: Network, name: str) -> None:
    data = {"ImageId": network.image, "InstanceType": "p4d.24xlarge", "NetworkInterfaces": [PLAIN, EFA]}
    template_id = client("ec2").create_launch_template(LaunchTemplateName=name, LaunchTemplateData=data)
    assert "Warning" not in template_id


def test_group_with_security_groups_outside_the_interfaces_is_refused(
    client: Client, group: Callable[..., str], network: Network
) -> None:
    with pytest.raises(ClientError, match="InvalidQueryParameter"):
        group({"SecurityGroupIds": [network.group]})


def test_group_with_efa_on_an_unsupported_type_is_refused(client: Client, group: Callable[..., str]) -> None:
    with pytest.raises(ClientError, match="valid fully-formed launch template"):
        group({"NetworkInterfaces": [PLAIN, EFA]})


def test_security_groups_of_another_vpc_are_refused(client: Client, network: Network, name: str) -> None:
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


def test_private_address_can_be_used_once(client: Client, network: Network, name: str) -> None:
    ec2 = client("ec2")
    subnet = ec2.create_subnet(VpcId=network.vpc, CidrBlock="10.0.250.0/24", AvailabilityZone="us-east-1a")
    where = {"SubnetId": subnet["Subnet"]["SubnetId"], "PrivateIpAddress": "10.0.250.20"}
    (first,) = run(client, ImageId=network.image, InstanceType="t3.medium", **where)
    with pytest.raises(ClientError, match=r"InvalidIPAddress\.InUse"):
        run(client, ImageId=network.image, InstanceType="t3.medium", **where)
    ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    run(client, ImageId=network.image, InstanceType="t3.medium", **where)


def test_failed_launch_creates_no_resources(client: Client, network: Network, aws: EmulatedAws) -> None:
    before = aws.list_resources()
    volume = {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 10, "SnapshotId": "snap-00000000000000000"}}
    with pytest.raises(ClientError, match=r"InvalidSnapshot\.NotFound"):
        run(
            client,
            ImageId=network.image,
            InstanceType="t3.medium",
            SubnetId=network.subnet,
            BlockDeviceMappings=[volume],
        )
    assert aws.list_resources() == before


def test_unsupported_launch_parameter_is_an_error(client: Client, network: Network) -> None:
    with pytest.raises(ClientError, match="a launch with CpuOptions"):
        run(client, ImageId=network.image, InstanceType="t3.medium", CpuOptions={"CoreCount": 1, "ThreadsPerCore": 1})


def test_unsupported_group_parameter_is_an_error(client: Client, group: Callable[..., str]) -> None:
    with pytest.raises(ClientError, match="an Auto Scaling group with MaxInstanceLifetime"):
        group(MaxInstanceLifetime=86400)


def test_client_token_launches_once(client: Client, network: Network, name: str) -> None:
    parameters = {"ImageId": network.image, "InstanceType": "t3.large", "SubnetId": network.subnet, "ClientToken": name}
    assert run(client, **parameters)[0]["InstanceId"] == run(client, **parameters)[0]["InstanceId"]


def test_default_root_volume_is_that_of_the_image(client: Client, network: Network) -> None:
    (instance,) = run(client, ImageId=network.image, InstanceType="t3.medium", SubnetId=network.subnet)
    (device,) = describe(client, instance)["BlockDeviceMappings"]
    assert (device["DeviceName"], device["Ebs"]["DeleteOnTermination"]) == ("/dev/sda1", True)
    (volume,) = client("ec2").describe_volumes(VolumeIds=[device["Ebs"]["VolumeId"]])["Volumes"]
    assert (volume["Size"], volume["VolumeType"]) == (8, "gp3")


def test_each_interface_has_separate_groups(client: Client, network: Network, name: str) -> None:
    other = client("ec2").create_security_group(GroupName=name, Description="efa", VpcId=network.vpc)["GroupId"]
    interfaces = [
        {**PLAIN, "SubnetId": network.subnet, "Groups": [network.group]},
        {**EFA, "SubnetId": network.subnet, "Groups": [other]},
    ]
    (instance,) = run(client, ImageId=network.image, InstanceType="p4d.24xlarge", NetworkInterfaces=interfaces)
    described = describe(client, instance)
    groups = [[group["GroupId"] for group in entry["Groups"]] for entry in described["NetworkInterfaces"]]
    assert groups == [[network.group], [other]]
    assert [group["GroupId"] for group in described["SecurityGroups"]] == [network.group]


@pytest.mark.parametrize(
    "parameter",
    [
        "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",
        "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id",
    ],
)
def test_published_images_exist(client: Client, parameter: str) -> None:
    image = client("ssm").get_parameter(Name=parameter)["Parameter"]["Value"]
    (described,) = client("ec2").describe_images(ImageIds=[image])["Images"]
    assert (described["Architecture"], described["VirtualizationType"]) == ("x86_64", "hvm")
    assert (described["RootDeviceName"], described["RootDeviceType"], described["State"]) == (
        "/dev/sda1",
        "ebs",
        "available",
    )


def test_placement_group_in_use_cannot_be_deleted(client: Client, network: Network, name: str) -> None:
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


def test_placement_group_is_described_as_created(client: Client, name: str) -> None:
    ec2 = client("ec2")
    tags = [{"Key": "Name", "Value": name}]
    specification = [{"ResourceType": "placement-group", "Tags": tags}]
    template_id = ec2.create_placement_group(GroupName=name, Strategy="cluster", TagSpecifications=specification)
    (described,) = ec2.describe_placement_groups(Filters=[{"Name": "tag:Name", "Values": [name]}])["PlacementGroups"]
    assert described == template_id["PlacementGroup"]
    assert (described["GroupName"], described["Strategy"], described["State"]) == (name, "cluster", "available")
    assert described["Tags"] == tags
    ec2.create_tags(Resources=[described["GroupId"]], Tags=[{"Key": "more", "Value": "1"}])
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.Duplicate"):
        ec2.create_placement_group(GroupName=name)


def test_cluster_placement_group_refuses_burstable_types(client: Client, network: Network, name: str) -> None:
    client("ec2").create_placement_group(GroupName=name, Strategy="cluster")
    with pytest.raises(ClientError, match="InvalidParameterCombination"):
        run(
            client,
            ImageId=network.image,
            InstanceType="t3.medium",
            SubnetId=network.subnet,
            Placement={"GroupName": name},
        )


def test_instance_types_of_the_catalog_are_described(client: Client) -> None:
    types = ["t3.medium", "t3.large", "c7i.xlarge", "p4d.24xlarge"]
    described = client("ec2").describe_instance_types(InstanceTypes=types)["InstanceTypes"]
    assert {entry["InstanceType"] for entry in described} == set(types)


@pytest.mark.parametrize(("behavior", "state"), [("terminate", "terminated"), ("stop", "stopped")])
def test_instance_shutdown_follows_the_shutdown_behavior(
    client: Client, network: Network, aws: EmulatedAws, behavior: str, state: str
) -> None:
    (template_id,) = client("ec2").run_instances(
        ImageId=network.image,
        InstanceType="t3.medium",
        MinCount=1,
        MaxCount=1,
        SubnetId=network.subnet,
        InstanceInitiatedShutdownBehavior=behavior,
    )["Instances"]
    aws.report_shutdown(template_id["InstanceId"])
    assert {record.id: record.state for record in aws.instances()}[template_id["InstanceId"]] == state


def test_shutdown_of_an_unknown_instance_is_refused(aws: EmulatedAws) -> None:
    with pytest.raises(ValueError, match="instance i-none does not exist"):
        aws.report_shutdown("i-none")


@pytest.mark.parametrize(("requested", "reported"), [("standard", "standard"), (None, "unlimited")])
def test_cpu_credits_of_a_burstable_type_are_reported(
    client: Client, network: Network, requested: str | None, reported: str
) -> None:
    """terraform-provider-aws sends both parameters with each launch, and reads the credits back."""
    credits = {"CreditSpecification": {"CpuCredits": requested}} if requested else {}
    common = {"ImageId": network.image, "InstanceType": "t3.medium", "SubnetId": network.subnet}
    (instance,) = run(client, HibernationOptions={"Configured": False}, **common, **credits)
    response = client("ec2").describe_instance_credit_specifications(InstanceIds=[instance["InstanceId"]])
    assert [entry["CpuCredits"] for entry in response["InstanceCreditSpecifications"]] == [reported]


def test_hibernation_is_not_emulated(client: Client, network: Network) -> None:
    common = {"ImageId": network.image, "InstanceType": "t3.medium", "SubnetId": network.subnet}
    with pytest.raises(ClientError, match=r"HibernationOptions\.Configured"):
        run(client, HibernationOptions={"Configured": True}, **common)
