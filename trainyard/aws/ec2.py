"""Amazon EC2 calls on instances, launch templates and images (AMIs)."""

import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from trainyard.aws.clients import client
from trainyard.aws.tags import tag_filters, tag_specifications

Tags = dict[str, str]
_IDS_PER_CALL = 100
DESCRIBE_TRIES, DESCRIBE_DELAY_SECONDS = 5, 2.0  # EC2 developer guide, "Eventual consistency in the Amazon EC2 API"
_EXISTING_STATES = ["pending", "running", "stopping", "stopped"]


def tags_of(resource: Mapping[str, Any]) -> Tags:
    """Return the tags of a described resource."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", [])}


def run_instance(region: str, request: Mapping[str, Any]) -> str:
    """Launch one instance with these parameters of RunInstances; return its id."""
    return str(client("ec2", region).run_instances(**request)["Instances"][0]["InstanceId"])


def stop_instance(region: str, instance: str) -> None:
    """Stop an instance and keep its disk."""
    client("ec2", region).stop_instances(InstanceIds=[instance])


def terminate_instances(region: str, instances: Iterable[str], *, skip_os_shutdown: bool = False) -> None:
    """Terminate instances; there must be at least one.

    `skip_os_shutdown`: without the shutdown of the operating system, which takes minutes on large types.
    """
    parameters = {"SkipOsShutdown": True} if skip_os_shutdown else {}
    for ids in _batches(instances):
        client("ec2", region).terminate_instances(InstanceIds=ids, **parameters)


def find_instances(region: str, tags: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the descriptions of all instances that have these tags and are not terminated or shutting down."""
    states = {"Name": "instance-state-name", "Values": _EXISTING_STATES}
    pages = client("ec2", region).get_paginator("describe_instances").paginate(Filters=[*tag_filters(tags), states])
    return [instance for page in pages for reservation in page["Reservations"] for instance in reservation["Instances"]]


def describe_instances(region: str, instances: Iterable[str]) -> list[dict[str, Any]]:
    """Return the descriptions of instances. Those that EC2 does not describe, not yet or no longer, are omitted."""
    pages = client("ec2", region).get_paginator("describe_instances")
    return [
        instance
        for ids in _batches(instances)
        for page in pages.paginate(Filters=[{"Name": "instance-id", "Values": ids}])
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    ]


def describe_all_instances(region: str, instances: Iterable[str]) -> list[dict[str, Any]]:
    """Return the descriptions of instances that exist. Repeats the call while a response omits some of them.

    Instances that EC2 does not describe after DESCRIBE_TRIES calls are omitted.
    """
    described: dict[str, dict[str, Any]] = {}
    missing = set(instances)
    for number in range(DESCRIBE_TRIES):
        time.sleep(number and DESCRIBE_DELAY_SECONDS)
        described |= {instance["InstanceId"]: instance for instance in describe_instances(region, missing)}
        missing -= described.keys()
        if not missing:
            break
    return list(described.values())


def instance_states(region: str, instances: Iterable[str]) -> dict[str, str]:
    """Return instance -> state. Instances that EC2 does not describe, not yet or no longer, are omitted."""
    return {instance["InstanceId"]: instance["State"]["Name"] for instance in describe_instances(region, instances)}


def _batches(instances: Iterable[str]) -> list[list[str]]:
    """Split ids for one call each: a filter accepts 200 values, and TerminateInstances recommends small batches."""
    ids = list(instances)
    return [ids[start : start + _IDS_PER_CALL] for start in range(0, len(ids), _IDS_PER_CALL)]


def instance_state(region: str, instance: str) -> str:
    """Return the state of an instance; `unknown` while a new instance is not visible in the EC2 API."""
    try:
        reservations = client("ec2", region).describe_instances(InstanceIds=[instance])["Reservations"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "InvalidInstanceID.NotFound":
            return "unknown"
        raise
    return str(reservations[0]["Instances"][0]["State"]["Name"]) if reservations else "unknown"


def offering_zones(region: str, instance_types: Iterable[str]) -> list[str]:
    """Return the Availability Zones of the region (not its Local Zones) that offer all these instance types."""
    names = list(instance_types)
    pages = (
        client("ec2", region)
        .get_paginator("describe_instance_type_offerings")
        .paginate(LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": names}])
    )
    offers = {(entry["Location"], entry["InstanceType"]) for page in pages for entry in page["InstanceTypeOfferings"]}
    zones = sorted({zone for zone, _ in offers if re.fullmatch(f"{region}[a-f]", zone)})
    return [zone for zone in zones if all((zone, name) in offers for name in names)]


def subnet_zone(region: str, subnet: str) -> str:
    """Return the Availability Zone of a subnet. Raises ClientError for an unknown subnet."""
    return str(client("ec2", region).describe_subnets(SubnetIds=[subnet])["Subnets"][0]["AvailabilityZone"])


def console_output(region: str, instance: str) -> str:
    """Return the console output of an instance; empty when EC2 has none."""
    return str(client("ec2", region).get_console_output(InstanceId=instance).get("Output", ""))


def launch_template_data(region: str, template: str, version: str) -> dict[str, Any]:
    """Return the data of one version of a launch template; `template` is its id, `version` may be `$Default`."""
    (description,) = client("ec2", region).describe_launch_template_versions(
        LaunchTemplateId=template, Versions=[version]
    )["LaunchTemplateVersions"]
    data: dict[str, Any] = description["LaunchTemplateData"]
    return data


def create_image(region: str, instance: str, name: str, description: str, tags: Mapping[str, str]) -> str:
    """Start the creation of an image from a stopped instance, tagged like its snapshots; return the image's id."""
    response = client("ec2", region).create_image(
        InstanceId=instance,
        Name=name,
        Description=description,
        TagSpecifications=tag_specifications(tags, ("image", "snapshot")),
    )
    return str(response["ImageId"])


def delete_image(region: str, image: str) -> None:
    """Deregister an image and delete its snapshots."""
    client("ec2", region).deregister_image(ImageId=image, DeleteAssociatedSnapshots=True)


def describe_image(region: str, image: str) -> dict[str, Any] | None:
    """Return the description of an image; None when it does not exist or, being new, is not visible in the EC2 API."""
    try:
        images = client("ec2", region).describe_images(ImageIds=[image])["Images"]
    except ClientError as error:
        if error.response["Error"]["Code"] in {"InvalidAMIID.NotFound", "InvalidAMIID.Unavailable"}:
            return None
        raise
    return images[0] if images else None


def find_images(region: str, tags: Mapping[str, str], states: Iterable[str]) -> list[dict[str, Any]]:
    """Return the descriptions of the account's own images that have these tags and one of these states."""
    response = client("ec2", region).describe_images(
        Owners=["self"], Filters=[*tag_filters(tags), {"Name": "state", "Values": list(states)}]
    )
    images: list[dict[str, Any]] = response["Images"]
    return images
