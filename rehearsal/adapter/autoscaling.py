"""Auto Scaling groups and their lifecycle hooks."""

from collections.abc import Mapping
from typing import Any

from rehearsal.adapter.handler import Call, Handler, Made, known, renamed
from rehearsal.adapter.session import wait_until

_DRAIN_SECONDS = 600.0


class AutoScalingGroup(Handler):
    type = "aws:autoscaling/group:Group"
    keys = known(
        "name",
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
    named = "name"
    replaces = frozenset({"name"})

    def create(self, call: Call) -> Made:
        client, given, name = call.aws.client("autoscaling"), call.inputs, self.name_of(call)
        assert given.get("desiredCapacity", 0) == 0, "the adapter makes empty groups only"
        client.create_auto_scaling_group(
            AutoScalingGroupName=name,
            Tags=self._tags(name, given),
            **self._settings(call),
            **call.only(desiredCapacity="DesiredCapacity"),
        )
        if given.get("suspendedProcesses"):
            client.suspend_processes(AutoScalingGroupName=name, ScalingProcesses=given["suspendedProcesses"])
        return name, {"name": name, "arn": self._described(call, name)["AutoScalingGroupARN"]}

    def update(self, call: Call) -> dict[str, Any]:
        """All but the desired capacity, which launch, lease and controller manage. Instances that run stay."""
        if call.changed("desiredCapacity"):
            raise NotImplementedError(f"{call.type} {call.name}: the adapter can't change desiredCapacity")
        client = call.aws.client("autoscaling")
        client.update_auto_scaling_group(AutoScalingGroupName=call.id, **self._settings(call))
        olds, news = (set(given.get("suspendedProcesses", [])) for given in (call.olds, call.inputs))
        if news - olds:
            client.suspend_processes(AutoScalingGroupName=call.id, ScalingProcesses=sorted(news - olds))
        if olds - news:
            client.resume_processes(AutoScalingGroupName=call.id, ScalingProcesses=sorted(olds - news))
        before, after = self._tags(call.id, call.olds), self._tags(call.id, call.inputs)
        if put := [tag for tag in after if tag not in before]:
            client.create_or_update_tags(Tags=put)
        kept = {tag["Key"] for tag in after}
        if gone := [tag for tag in before if tag["Key"] not in kept]:
            client.delete_tags(Tags=gone)
        return {}

    def _settings(self, call: Call) -> dict[str, Any]:
        template = call.inputs["launchTemplate"]
        return {
            "LaunchTemplate": {"LaunchTemplateId": template["id"], "Version": template["version"]},
            "VPCZoneIdentifier": ",".join(call.inputs["vpcZoneIdentifiers"]),
            **call.only(
                minSize="MinSize",
                maxSize="MaxSize",
                healthCheckType="HealthCheckType",
                healthCheckGracePeriod="HealthCheckGracePeriod",
                terminationPolicies="TerminationPolicies",
            ),
        }

    def _tags(self, name: str, given: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {"ResourceId": name, "ResourceType": "auto-scaling-group", **renamed(tag)} for tag in given.get("tags", [])
        ]

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
    keys = known("name", "autoscalingGroupName", "lifecycleTransition", "heartbeatTimeout", "defaultResult")
    named = "name"
    replaces = frozenset({"name", "autoscalingGroupName"})

    def create(self, call: Call) -> Made:
        name = self.name_of(call)
        self._put(call, name)
        return name, {"name": name}

    def update(self, call: Call) -> dict[str, Any]:
        self._put(call, call.id)
        return {}

    def _put(self, call: Call, name: str) -> None:
        call.aws.client("autoscaling").put_lifecycle_hook(
            LifecycleHookName=name,
            **call.only(
                autoscalingGroupName="AutoScalingGroupName",
                lifecycleTransition="LifecycleTransition",
                heartbeatTimeout="HeartbeatTimeout",
                defaultResult="DefaultResult",
            ),
        )

    def delete(self, call: Call) -> None:
        call.aws.client("autoscaling").delete_lifecycle_hook(
            LifecycleHookName=call.id, AutoScalingGroupName=call.inputs["autoscalingGroupName"]
        )


HANDLERS = (AutoScalingGroup(), LifecycleHook())
