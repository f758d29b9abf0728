"""EC2 placement groups and launch templates."""

from collections.abc import Collection, Mapping
from typing import Any

from rehearsal.adapter.handler import (
    CreateResult,
    Handler,
    HandlerCall,
    ReadResult,
    api_name,
    input_keys,
    tag_list,
    to_api_names,
)
from rehearsal.adapter.refresh import describe, select, tag_dict, to_input_names
from rehearsal.adapter.tagging import update_ec2_tags

_METADATA = input_keys("httpEndpoint", "httpTokens", "httpPutResponseHopLimit")


class PlacementGroup(Handler):
    """An EC2 placement group."""

    type = "aws:ec2/placementGroup:PlacementGroup"
    keys = input_keys("name", "strategy", "tags")
    name_input = "name"
    replace_on_changes = frozenset({"name", "strategy"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the placement group."""
        name = self.physical_name(call)
        response = call.aws.client("ec2").create_placement_group(
            GroupName=name, Strategy=call.inputs["strategy"], **call.tag_specification("placement-group")
        )
        group = response["PlacementGroup"]
        return name, {"name": name, "arn": group["GroupArn"], "placementGroupId": group["GroupId"]}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the tags."""
        update_ec2_tags(call, call.outputs["placementGroupId"])
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        group = describe(call, "describe_placement_groups", "PlacementGroups", "group-name")
        if group is None:
            return None
        inputs = {"name": call.id, "strategy": group["Strategy"], "tags": tag_dict(group.get("Tags"))}
        return ReadResult(inputs=inputs)

    def delete(self, call: HandlerCall) -> None:
        """Delete the placement group."""
        call.aws.client("ec2").delete_placement_group(GroupName=call.id)


class LaunchTemplate(Handler):
    """An EC2 launch template. A change of its data creates a new version."""

    type = "aws:ec2/launchTemplate:LaunchTemplate"
    keys = input_keys(
        "name",
        "imageId",
        "instanceType",
        "userData",
        "instanceInitiatedShutdownBehavior",
        "updateDefaultVersion",  # only for updates: the first version is always the default
        "tags",
        iamInstanceProfile=input_keys("name"),
        instanceMarketOptions=input_keys(
            "marketType", spotOptions=input_keys("maxPrice", "spotInstanceType", "instanceInterruptionBehavior")
        ),
        capacityReservationSpecification=input_keys(
            "capacityReservationPreference",
            capacityReservationTarget=input_keys("capacityReservationId"),
        ),
        metadataOptions=_METADATA,
        placement=input_keys("groupName"),
        networkInterfaces=input_keys(
            "networkCardIndex",
            "deviceIndex",
            "interfaceType",
            "associatePublicIpAddress",
            "securityGroups",
            "deleteOnTermination",
        ),
        blockDeviceMappings=input_keys(
            "deviceName",
            ebs=input_keys("volumeType", "volumeSize", "throughput", "encrypted", "kmsKeyId", "deleteOnTermination"),
        ),
        tagSpecifications=input_keys("resourceType", "tags"),
    )
    name_input = "name"
    replace_on_changes = frozenset({"name"})
    unreported = frozenset({"updateDefaultVersion"})
    _unversioned = frozenset({"name", "tags", "updateDefaultVersion"})  # inputs that are not part of a version

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the template with its first version."""
        template = call.aws.client("ec2").create_launch_template(
            LaunchTemplateName=self.physical_name(call),
            LaunchTemplateData=self._data(call),
            **call.tag_specification("launch-template"),
        )["LaunchTemplate"]
        return template["LaunchTemplateId"], {
            "name": template["LaunchTemplateName"],
            "latestVersion": template["LatestVersionNumber"],
            "defaultVersion": template["DefaultVersionNumber"],
        }

    def outputs_changed_by(self, changed: Collection[str]) -> frozenset[str]:
        """Changed data creates a new version."""
        return frozenset() if self._unversioned >= set(changed) else frozenset({"latestVersion", "defaultVersion"})

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Create a new version when the data changed. Running instances keep their version."""
        update_ec2_tags(call)
        if not call.has_changed(*(self.keys.keys() - self._unversioned)):
            return {}
        ec2 = call.aws.client("ec2")
        response = ec2.create_launch_template_version(LaunchTemplateId=call.id, LaunchTemplateData=self._data(call))
        latest = response["LaunchTemplateVersion"]["VersionNumber"]
        if not call.inputs.get("updateDefaultVersion"):
            return {"latestVersion": latest}
        ec2.modify_launch_template(LaunchTemplateId=call.id, DefaultVersion=str(latest))
        return {"latestVersion": latest, "defaultVersion": latest}

    def _data(self, call: HandlerCall) -> dict[str, Any]:
        inputs = call.inputs
        data: dict[str, Any] = call.api_arguments(
            imageId="ImageId",
            instanceType="InstanceType",
            userData="UserData",
            instanceInitiatedShutdownBehavior="InstanceInitiatedShutdownBehavior",
        )
        for key in (
            "iamInstanceProfile",
            "metadataOptions",
            "placement",
            "instanceMarketOptions",
            "capacityReservationSpecification",
        ):
            if key in inputs:
                data[api_name(key)] = to_api_names(inputs[key])
        data["NetworkInterfaces"] = [
            to_api_names(_booleans(interface), securityGroups="Groups")
            for interface in inputs.get("networkInterfaces", [])
        ]
        data["BlockDeviceMappings"] = [
            {"DeviceName": device["deviceName"], "Ebs": to_api_names(_booleans(device["ebs"]))}
            for device in inputs.get("blockDeviceMappings", [])
        ]
        data["TagSpecifications"] = [
            {"ResourceType": item["resourceType"], "Tags": tag_list(item["tags"])}
            for item in inputs.get("tagSpecifications", [])
        ]
        return {key: value for key, value in data.items() if value}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        ec2 = call.aws.client("ec2")
        templates = ec2.describe_launch_templates(LaunchTemplateIds=[call.id])["LaunchTemplates"]
        if not templates:  # moto returns no error
            return None
        template = templates[0]
        versions = ec2.describe_launch_template_versions(LaunchTemplateId=call.id, Versions=["$Latest"])
        data = versions["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        inputs = to_input_names(data, Groups="securityGroups") | {
            "name": template["LaunchTemplateName"],
            "tagSpecifications": [
                {"resourceType": each["ResourceType"], "tags": tag_dict(each["Tags"])}
                for each in data.get("TagSpecifications", [])
            ],
            "tags": tag_dict(template.get("Tags")),
        }
        versions = select(template, latestVersion="LatestVersionNumber", defaultVersion="DefaultVersionNumber")
        return ReadResult(inputs=inputs, outputs=versions)

    def delete(self, call: HandlerCall) -> None:
        """Delete the launch template."""
        call.aws.client("ec2").delete_launch_template(LaunchTemplateId=call.id)


def _booleans(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the provider's three-valued booleans, which are strings."""
    return {key: value == "true" if value in ("true", "false") else value for key, value in values.items()}


HANDLERS = (PlacementGroup(), LaunchTemplate())
