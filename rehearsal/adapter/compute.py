"""Placement groups, instances, launch templates and Auto Scaling groups."""

from collections.abc import Mapping
from typing import Any

from rehearsal.adapter.handler import Call, Handler, Made, api_case, known, tag_list
from rehearsal.adapter.session import wait_until

_INSTANCE_SECONDS = 300.0
_DRAIN_SECONDS = 600.0
_METADATA = known("httpEndpoint", "httpTokens", "httpPutResponseHopLimit")


def _api(given: Mapping[str, Any], **special: str) -> dict[str, Any]:
    """A flat object under the API's names: the provider's with a capital, save the special ones."""
    return {special.get(key, api_case(key)): value for key, value in given.items()}


def _deep_api(given: Mapping[str, Any]) -> dict[str, Any]:
    """The same for an object with objects in it."""
    return {api_case(key): _deep_api(value) if isinstance(value, Mapping) else value for key, value in given.items()}


class PlacementGroup(Handler):
    type = "aws:ec2/placementGroup:PlacementGroup"
    keys = known("strategy", "tags")

    def create(self, call: Call) -> Made:
        name = call.autoname()
        answer = call.aws.client("ec2").create_placement_group(
            GroupName=name, Strategy=call.inputs["strategy"], **call.tag_specification("placement-group")
        )
        return name, {"name": name, "placementGroupId": answer["PlacementGroup"]["GroupId"]}

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
            arguments["MetadataOptions"] = _api(given["metadataOptions"])
        if root:
            arguments["BlockDeviceMappings"] = [{"DeviceName": image["RootDeviceName"], "Ebs": _api(root)}]
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

    def create(self, call: Call) -> Made:
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
                data[api_case(key)] = _deep_api(given[key])
        data["NetworkInterfaces"] = [
            _api(_booleans(interface), securityGroups="Groups") for interface in given.get("networkInterfaces", [])
        ]
        data["BlockDeviceMappings"] = [
            {"DeviceName": device["deviceName"], "Ebs": _api(_booleans(device["ebs"]))}
            for device in given.get("blockDeviceMappings", [])
        ]
        data["TagSpecifications"] = [
            {"ResourceType": item["resourceType"], "Tags": tag_list(item["tags"])}
            for item in given.get("tagSpecifications", [])
        ]
        made = call.aws.client("ec2").create_launch_template(
            LaunchTemplateName=call.autoname(),
            LaunchTemplateData={key: value for key, value in data.items() if value},
            **call.only(description="VersionDescription"),
            **call.tag_specification("launch-template"),
        )["LaunchTemplate"]
        return made["LaunchTemplateId"], {
            "name": made["LaunchTemplateName"],
            "latestVersion": made["LatestVersionNumber"],
            "defaultVersion": made["DefaultVersionNumber"],
        }

    def delete(self, call: Call) -> None:
        call.aws.client("ec2").delete_launch_template(LaunchTemplateId=call.id)


def _booleans(given: Mapping[str, Any]) -> dict[str, Any]:
    """The provider writes three-valued booleans as strings."""
    return {key: value == "true" if value in ("true", "false") else value for key, value in given.items()}


class AutoScalingGroup(Handler):
    type = "aws:autoscaling/group:Group"
    keys = known(
        "minSize",
        "maxSize",
        "desiredCapacity",
        "vpcZoneIdentifiers",
        "healthCheckType",
        "healthCheckGracePeriod",
        "suspendedProcesses",
        "terminationPolicies",
        "waitForCapacityTimeout",  # no wait: the group is made empty
        launchTemplate=known("id", "version"),
        tags=known("key", "value", "propagateAtLaunch"),
    )

    def create(self, call: Call) -> Made:
        client, given, name = call.aws.client("autoscaling"), call.inputs, call.autoname()
        assert given.get("desiredCapacity", 0) == 0, "the adapter makes empty groups only"
        template = given["launchTemplate"]
        client.create_auto_scaling_group(
            AutoScalingGroupName=name,
            LaunchTemplate={"LaunchTemplateId": template["id"], "Version": template["version"]},
            VPCZoneIdentifier=",".join(given["vpcZoneIdentifiers"]),
            Tags=[
                {"ResourceId": name, "ResourceType": "auto-scaling-group", **_api(tag)} for tag in given.get("tags", [])
            ],
            **call.only(
                minSize="MinSize",
                maxSize="MaxSize",
                desiredCapacity="DesiredCapacity",
                healthCheckType="HealthCheckType",
                healthCheckGracePeriod="HealthCheckGracePeriod",
                terminationPolicies="TerminationPolicies",
            ),
        )
        if given.get("suspendedProcesses"):
            client.suspend_processes(AutoScalingGroupName=name, ScalingProcesses=given["suspendedProcesses"])
        return name, {"name": name, "arn": self._described(call, name)["AutoScalingGroupARN"]}

    def delete(self, call: Call) -> None:
        client = call.aws.client("autoscaling")
        client.update_auto_scaling_group(AutoScalingGroupName=call.id, MinSize=0, MaxSize=0, DesiredCapacity=0)
        wait_until(
            f"group {call.id} has no instances", lambda: not self._described(call, call.id)["Instances"], _DRAIN_SECONDS
        )
        client.delete_auto_scaling_group(AutoScalingGroupName=call.id)
        wait_until(f"group {call.id} is gone", lambda: self._described(call, call.id) is None, _DRAIN_SECONDS)

    def _described(self, call: Call, name: str) -> Any:
        client = call.aws.client("autoscaling")
        found = client.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return found[0] if found else None


class LifecycleHook(Handler):
    type = "aws:autoscaling/lifecycleHook:LifecycleHook"
    keys = known("autoscalingGroupName", "lifecycleTransition", "heartbeatTimeout", "defaultResult")

    def create(self, call: Call) -> Made:
        name = call.autoname()
        call.aws.client("autoscaling").put_lifecycle_hook(
            LifecycleHookName=name,
            **call.only(
                autoscalingGroupName="AutoScalingGroupName",
                lifecycleTransition="LifecycleTransition",
                heartbeatTimeout="HeartbeatTimeout",
                defaultResult="DefaultResult",
            ),
        )
        return name, {"name": name}

    def delete(self, call: Call) -> None:
        call.aws.client("autoscaling").delete_lifecycle_hook(
            LifecycleHookName=call.id, AutoScalingGroupName=call.inputs["autoscalingGroupName"]
        )


HANDLERS = (PlacementGroup(), Instance(), LaunchTemplate(), AutoScalingGroup(), LifecycleHook())
