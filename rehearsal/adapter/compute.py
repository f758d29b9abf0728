"""Placement groups, instances and launch templates."""

from collections.abc import Collection, Mapping
from typing import Any

from rehearsal.adapter.changes import Changed
from rehearsal.adapter.handler import Call, Handler, Made, api_case, known, renamed, tag_list
from rehearsal.adapter.session import wait_until
from rehearsal.adapter.tagging import retag

_INSTANCE_SECONDS = 300.0
_METADATA = known("httpEndpoint", "httpTokens", "httpPutResponseHopLimit")


class PlacementGroup(Handler):
    type = "aws:ec2/placementGroup:PlacementGroup"
    keys = known("name", "strategy", "tags")
    named = "name"
    replaces = frozenset({"name", "strategy"})

    def create(self, call: Call) -> Made:
        name = self.name_of(call)
        answer = call.aws.client("ec2").create_placement_group(
            GroupName=name, Strategy=call.inputs["strategy"], **call.tag_specification("placement-group")
        )
        return name, {"name": name, "placementGroupId": answer["PlacementGroup"]["GroupId"]}

    def update(self, call: Call) -> dict[str, Any]:
        retag(call, call.outputs["placementGroupId"])
        return {}

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").delete_placement_group(GroupName=call.id)


class Instance(Handler):
    type = "aws:ec2/instance:Instance"
    keys = known(
        "ami",
        "instanceType",
        "subnetId",
        "vpcSecurityGroupIds",
        "associatePublicIpAddress",
        "iamInstanceProfile",
        "userData",
        "userDataReplaceOnChange",  # says how a change is made: nothing for a creation
        "tags",
        metadataOptions=_METADATA,
        rootBlockDevice=known("volumeType", "volumeSize", "encrypted", "kmsKeyId", "deleteOnTermination", "tags"),
    )
    replaces = frozenset(
        {"ami", "subnetId", "associatePublicIpAddress", "rootBlockDevice.encrypted", "rootBlockDevice.kmsKeyId"}
    )

    def create(self, call: Call) -> Made:
        ec2, given = call.aws.client("ec2"), call.inputs
        root = dict(given.get("rootBlockDevice", {}))
        specifications = [{"ResourceType": "instance", "Tags": call.tags}]
        if "tags" in root:
            specifications.append({"ResourceType": "volume", "Tags": tag_list(root.pop("tags"))})
        image = ec2.describe_images(ImageIds=[given["ami"]])["Images"][0]
        interface = {"DeviceIndex": 0, "DeleteOnTermination": True} | call.only(
            subnetId="SubnetId", vpcSecurityGroupIds="Groups", associatePublicIpAddress="AssociatePublicIpAddress"
        )
        arguments: dict[str, Any] = call.only(ami="ImageId", instanceType="InstanceType", userData="UserData")
        if "iamInstanceProfile" in given:
            arguments["IamInstanceProfile"] = {"Name": given["iamInstanceProfile"]}
        if "metadataOptions" in given:
            arguments["MetadataOptions"] = renamed(given["metadataOptions"])
        if root:
            arguments["BlockDeviceMappings"] = [{"DeviceName": image["RootDeviceName"], "Ebs": renamed(root)}]
        made = ec2.run_instances(
            MinCount=1, MaxCount=1, NetworkInterfaces=[interface], TagSpecifications=specifications, **arguments
        )["Instances"][0]["InstanceId"]
        found = wait_until(
            f"instance {made} is running", lambda: self._in_state(call, made, "running"), _INSTANCE_SECONDS
        )
        return made, {
            "privateIp": found["PrivateIpAddress"],
            "privateDns": found.get("PrivateDnsName", ""),
            "instanceState": "running",
        }

    def forces(self, path: Changed, olds: Mapping[str, Any], news: Mapping[str, Any]) -> bool:
        if path[0] == "userData":
            return bool(news.get("userDataReplaceOnChange"))
        return super().forces(path, olds, news)

    def update(self, call: Call) -> dict[str, Any]:
        """Tags, groups and metadata options. What would stop the instance, or change its disk, is not modelled."""
        can = {"tags", "vpcSecurityGroupIds", "metadataOptions", "userDataReplaceOnChange"}
        rest = [key for key in self.keys if key not in can and call.changed(key)]
        if rest:
            raise NotImplementedError(f"{call.type} {call.name}: the adapter can't change {', '.join(rest)}")
        ec2 = call.aws.client("ec2")
        if call.changed("vpcSecurityGroupIds"):
            ec2.modify_instance_attribute(InstanceId=call.id, Groups=call.inputs["vpcSecurityGroupIds"])
        if call.changed("metadataOptions"):
            ec2.modify_instance_metadata_options(InstanceId=call.id, **renamed(call.inputs["metadataOptions"]))
        retag(call)
        return {}

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").terminate_instances(InstanceIds=[call.id])
        wait_until(
            f"instance {call.id} is terminated", lambda: self._in_state(call, call.id, "terminated"), _INSTANCE_SECONDS
        )

    def _in_state(self, call: Call, instance: str, state: str) -> dict[str, Any] | None:
        # By filter, not by id: an instance just launched may be unknown yet, and one long gone no more.
        by_id = [{"Name": "instance-id", "Values": [instance]}]
        found = call.aws.client("ec2").describe_instances(Filters=by_id)["Reservations"]
        if not found:
            return {} if state == "terminated" else None
        described: dict[str, Any] = found[0]["Instances"][0]
        reached = described["State"]["Name"] == state and (state != "running" or described.get("PrivateIpAddress"))
        return described if reached else None


class LaunchTemplate(Handler):
    type = "aws:ec2/launchTemplate:LaunchTemplate"
    keys = known(
        "name",
        "imageId",
        "instanceType",
        "userData",
        "updateDefaultVersion",  # of later versions: the first is the default anyway
        "description",
        "tags",
        iamInstanceProfile=known("name"),
        instanceMarketOptions=known(
            "marketType", spotOptions=known("maxPrice", "spotInstanceType", "instanceInterruptionBehavior")
        ),
        capacityReservationSpecification=known(
            "capacityReservationPreference",
            capacityReservationTarget=known("capacityReservationId", "capacityReservationResourceGroupArn"),
        ),
        monitoring=known("enabled"),
        metadataOptions=_METADATA,
        placement=known("groupName"),
        networkInterfaces=known(
            "networkCardIndex", "deviceIndex", "interfaceType", "securityGroups", "deleteOnTermination"
        ),
        blockDeviceMappings=known(
            "deviceName", ebs=known("volumeType", "volumeSize", "encrypted", "kmsKeyId", "deleteOnTermination")
        ),
        tagSpecifications=known("resourceType", "tags"),
    )
    named = "name"
    replaces = frozenset({"name"})
    _beside = frozenset({"name", "tags", "updateDefaultVersion"})  # inputs that are none of a version's data

    def create(self, call: Call) -> Made:
        made = call.aws.client("ec2").create_launch_template(
            LaunchTemplateName=self.name_of(call),
            LaunchTemplateData=self._data(call),
            **call.only(description="VersionDescription"),
            **call.tag_specification("launch-template"),
        )["LaunchTemplate"]
        return made["LaunchTemplateId"], {
            "name": made["LaunchTemplateName"],
            "latestVersion": made["LatestVersionNumber"],
            "defaultVersion": made["DefaultVersionNumber"],
        }

    def anew(self, changed: Collection[str]) -> frozenset[str]:
        return frozenset() if self._beside >= set(changed) else frozenset({"latestVersion", "defaultVersion"})

    def update(self, call: Call) -> dict[str, Any]:
        """Changed data is a new version; instances that run keep theirs."""
        retag(call)
        if not call.changed(*(self.keys.keys() - self._beside)):
            return {}
        ec2 = call.aws.client("ec2")
        answer = ec2.create_launch_template_version(
            LaunchTemplateId=call.id, LaunchTemplateData=self._data(call), **call.only(description="VersionDescription")
        )
        latest = answer["LaunchTemplateVersion"]["VersionNumber"]
        if not call.inputs.get("updateDefaultVersion"):
            return {"latestVersion": latest}
        ec2.modify_launch_template(LaunchTemplateId=call.id, DefaultVersion=str(latest))
        return {"latestVersion": latest, "defaultVersion": latest}

    def _data(self, call: Call) -> dict[str, Any]:
        given = call.inputs
        data: dict[str, Any] = call.only(imageId="ImageId", instanceType="InstanceType", userData="UserData")
        for key in (
            "iamInstanceProfile",
            "metadataOptions",
            "placement",
            "monitoring",
            "instanceMarketOptions",
            "capacityReservationSpecification",
        ):
            if key in given:
                data[api_case(key)] = renamed(given[key])
        data["NetworkInterfaces"] = [
            renamed(_booleans(interface), securityGroups="Groups") for interface in given.get("networkInterfaces", [])
        ]
        data["BlockDeviceMappings"] = [
            {"DeviceName": device["deviceName"], "Ebs": renamed(_booleans(device["ebs"]))}
            for device in given.get("blockDeviceMappings", [])
        ]
        data["TagSpecifications"] = [
            {"ResourceType": item["resourceType"], "Tags": tag_list(item["tags"])}
            for item in given.get("tagSpecifications", [])
        ]
        return {key: value for key, value in data.items() if value}

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").delete_launch_template(LaunchTemplateId=call.id)


def _booleans(given: Mapping[str, Any]) -> dict[str, Any]:
    """The provider writes three-valued booleans as strings."""
    return {key: value == "true" if value in ("true", "false") else value for key, value in given.items()}


HANDLERS = (PlacementGroup(), Instance(), LaunchTemplate())
