"""EC2 placement groups, instances and launch templates."""

from collections.abc import Collection, Mapping
from typing import Any

from rehearsal.adapter.aws_clients import wait_until
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
from rehearsal.adapter.input_diff import PropertyPath
from rehearsal.adapter.refresh import describe, select, tag_dict, to_input_names
from rehearsal.adapter.tagging import update_ec2_tags

_INSTANCE_TIMEOUT_SECONDS = 300.0
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


class Instance(Handler):
    """An EC2 instance."""

    type = "aws:ec2/instance:Instance"
    keys = input_keys(
        "ami",
        "instanceType",
        "subnetId",
        "vpcSecurityGroupIds",
        "associatePublicIpAddress",
        "iamInstanceProfile",
        "userData",
        "userDataReplaceOnChange",  # only for updates
        "tags",
        metadataOptions=_METADATA,
        rootBlockDevice=input_keys("volumeType", "volumeSize", "encrypted", "kmsKeyId", "deleteOnTermination", "tags"),
    )
    unreported = frozenset({"associatePublicIpAddress", "userDataReplaceOnChange", "userData", "rootBlockDevice"})
    replace_on_changes = frozenset(
        {"ami", "subnetId", "associatePublicIpAddress", "rootBlockDevice.encrypted", "rootBlockDevice.kmsKeyId"}
    )

    def create(self, call: HandlerCall) -> CreateResult:
        """Launch the instance and wait until it is running."""
        ec2, inputs = call.aws.client("ec2"), call.inputs
        root = dict(inputs.get("rootBlockDevice", {}))
        specifications = [{"ResourceType": "instance", "Tags": call.tags}]
        if "tags" in root:
            specifications.append({"ResourceType": "volume", "Tags": tag_list(root.pop("tags"))})
        image = ec2.describe_images(ImageIds=[inputs["ami"]])["Images"][0]
        interface = {"DeviceIndex": 0, "DeleteOnTermination": True} | call.api_arguments(
            subnetId="SubnetId", vpcSecurityGroupIds="Groups", associatePublicIpAddress="AssociatePublicIpAddress"
        )
        arguments: dict[str, Any] = call.api_arguments(ami="ImageId", instanceType="InstanceType", userData="UserData")
        if "iamInstanceProfile" in inputs:
            arguments["IamInstanceProfile"] = {"Name": inputs["iamInstanceProfile"]}
        if "metadataOptions" in inputs:
            arguments["MetadataOptions"] = to_api_names(inputs["metadataOptions"])
        if root:
            arguments["BlockDeviceMappings"] = [{"DeviceName": image["RootDeviceName"], "Ebs": to_api_names(root)}]
        instance_id = ec2.run_instances(
            MinCount=1, MaxCount=1, NetworkInterfaces=[interface], TagSpecifications=specifications, **arguments
        )["Instances"][0]["InstanceId"]
        instance = wait_until(
            f"instance {instance_id} is running",
            lambda: self._in_state(call, instance_id, "running"),
            _INSTANCE_TIMEOUT_SECONDS,
        )
        return instance_id, {
            "privateIp": instance["PrivateIpAddress"],
            "privateDns": instance.get("PrivateDnsName", ""),
            "instanceState": "running",
        }

    def requires_replacement(
        self, path: PropertyPath, old_inputs: Mapping[str, Any], new_inputs: Mapping[str, Any]
    ) -> bool:
        """Changed user data replaces the instance only when `userDataReplaceOnChange` is set."""
        if path[0] == "userData":
            return bool(new_inputs.get("userDataReplaceOnChange"))
        return super().requires_replacement(path, old_inputs, new_inputs)

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update tags, security groups and metadata options.

        Raises NotImplementedError for updates that would stop the instance or change its volume.
        """
        supported = {"tags", "vpcSecurityGroupIds", "metadataOptions", "userDataReplaceOnChange"}
        unsupported = [key for key in self.keys if key not in supported and call.has_changed(key)]
        if unsupported:
            raise NotImplementedError(
                f"{call.type} {call.name}: the adapter does not support changes of {', '.join(unsupported)}"
            )
        ec2 = call.aws.client("ec2")
        if call.has_changed("vpcSecurityGroupIds"):
            ec2.modify_instance_attribute(InstanceId=call.id, Groups=call.inputs["vpcSecurityGroupIds"])
        if call.has_changed("metadataOptions"):
            ec2.modify_instance_metadata_options(InstanceId=call.id, **to_api_names(call.inputs["metadataOptions"]))
        update_ec2_tags(call)
        return {}

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        reservation = None
        for _ in range(2):  # one response may omit any instance
            reservation = reservation or describe(call, "describe_instances", "Reservations", "instance-id")
        instance = reservation["Instances"][0] if reservation else None
        if instance is None or instance["State"]["Name"] == "terminated":
            return None
        inputs = select(instance, ami="ImageId", instanceType="InstanceType", subnetId="SubnetId") | {
            "vpcSecurityGroupIds": [group["GroupId"] for group in instance["SecurityGroups"]],
            "metadataOptions": to_input_names(instance["MetadataOptions"]),
            "iamInstanceProfile": instance.get("IamInstanceProfile", {}).get("Arn", "").rpartition("/")[2],
            "tags": tag_dict(instance.get("Tags")),
        }
        return ReadResult(inputs=inputs, outputs={"instanceState": instance["State"]["Name"]})

    def delete(self, call: HandlerCall) -> None:
        """Terminate the instance and wait until it is terminated."""
        call.aws.client("ec2").terminate_instances(InstanceIds=[call.id])
        wait_until(
            f"instance {call.id} is terminated",
            lambda: self._in_state(call, call.id, "terminated"),
            _INSTANCE_TIMEOUT_SECONDS,
        )

    def _in_state(self, call: HandlerCall, instance_id: str, state: str) -> dict[str, Any] | None:
        # By filter, not by id: EC2 may not know the id of a new instance yet, or of one terminated long ago any more.
        by_id = [{"Name": "instance-id", "Values": [instance_id]}]
        reservations = call.aws.client("ec2").describe_instances(Filters=by_id)["Reservations"]
        if not reservations:
            return {} if state == "terminated" else None
        instance: dict[str, Any] = reservations[0]["Instances"][0]
        reached = instance["State"]["Name"] == state and (state != "running" or instance.get("PrivateIpAddress"))
        return instance if reached else None


class LaunchTemplate(Handler):
    """An EC2 launch template. A change of its data creates a new version."""

    type = "aws:ec2/launchTemplate:LaunchTemplate"
    keys = input_keys(
        "name",
        "imageId",
        "instanceType",
        "userData",
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
            "networkCardIndex", "deviceIndex", "interfaceType", "securityGroups", "deleteOnTermination"
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
        data: dict[str, Any] = call.api_arguments(imageId="ImageId", instanceType="InstanceType", userData="UserData")
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


HANDLERS = (PlacementGroup(), Instance(), LaunchTemplate())
