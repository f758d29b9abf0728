"""Auto Scaling groups and lifecycle hooks."""

from collections.abc import Mapping
from typing import Any

from botocore.exceptions import ClientError

from rehearsal.adapter.aws_clients import wait_until
from rehearsal.adapter.errors import AdapterError
from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, input_keys, to_api_names
from rehearsal.adapter.refresh import to_input_names

_TIMEOUT_SECONDS = 600.0


class AutoScalingGroup(Handler):
    """An Auto Scaling group."""

    type = "aws:autoscaling/group:Group"
    keys = input_keys(
        "name",
        "minSize",
        "maxSize",
        "vpcZoneIdentifiers",
        "healthCheckType",
        "healthCheckGracePeriod",
        "suspendedProcesses",
        "terminationPolicies",
        "waitForCapacityTimeout",
        launchTemplate=input_keys("id", "version"),
        mixedInstancesPolicy=input_keys(
            launchTemplate=input_keys(
                launchTemplateSpecification=input_keys("launchTemplateId", "version"),
                overrides=input_keys("instanceType"),
            ),
            instancesDistribution=input_keys(
                "onDemandBaseCapacity", "onDemandPercentageAboveBaseCapacity", "spotAllocationStrategy", "spotMaxPrice"
            ),
        ),
        instanceMaintenancePolicy=input_keys("minHealthyPercentage", "maxHealthyPercentage"),
        instanceRefresh=input_keys("strategy", preferences=input_keys("minHealthyPercentage", "instanceWarmup")),
        tags=input_keys("key", "value", "propagateAtLaunch"),
    )
    name_input = "name"
    replace_on_changes = frozenset({"name"})
    unreported = frozenset({"waitForCapacityTimeout", "instanceRefresh"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the group, suspend its scaling processes, and wait for its instances."""
        client, inputs, name = call.aws.client("autoscaling"), call.inputs, self.physical_name(call)
        client.create_auto_scaling_group(
            AutoScalingGroupName=name,
            Tags=self._tags(name, inputs),
            **self._settings(call),
        )
        if inputs.get("suspendedProcesses"):
            client.suspend_processes(AutoScalingGroupName=name, ScalingProcesses=inputs["suspendedProcesses"])
        if inputs.get("waitForCapacityTimeout") != "0":
            wait_until(
                f"group {name} has its instances in service", lambda: self._has_capacity(call, name), _TIMEOUT_SECONDS
            )
        return name, {"name": name, "arn": self._describe(call, name)["AutoScalingGroupARN"]}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the group, but not its desired capacity, which launch, lease and controller manage.

        Running instances stay, unless an instance refresh replaces them.
        """
        client = call.aws.client("autoscaling")
        client.update_auto_scaling_group(AutoScalingGroupName=call.id, **self._settings(call))
        before, after = (set(inputs.get("suspendedProcesses", [])) for inputs in (call.old_inputs, call.inputs))
        if after - before:
            client.suspend_processes(AutoScalingGroupName=call.id, ScalingProcesses=sorted(after - before))
        if before - after:
            client.resume_processes(AutoScalingGroupName=call.id, ScalingProcesses=sorted(before - after))
        old_tags, new_tags = self._tags(call.id, call.old_inputs), self._tags(call.id, call.inputs)
        if put := [tag for tag in new_tags if tag not in old_tags]:
            client.create_or_update_tags(Tags=put)
        keys = {tag["Key"] for tag in new_tags}
        if removed := [tag for tag in old_tags if tag["Key"] not in keys]:
            client.delete_tags(Tags=removed)
        self._refresh_instances(call)
        return {}

    def _has_capacity(self, call: HandlerCall, name: str) -> bool:
        """Return whether the group has its instances. Raises AdapterError for a failed launch.

        terraform-provider-aws, resource aws_autoscaling_group, ignore_failed_scaling_activities: by default the
        provider does not wait until Auto Scaling tries again.
        """
        activities = call.aws.client("autoscaling").describe_scaling_activities(AutoScalingGroupName=name)["Activities"]
        failed = next((each for each in activities if each["StatusCode"] == "Failed"), None)
        if failed:
            raise AdapterError(f"{call.type} {call.name}: waiting for capacity: {failed['StatusMessage']}")
        members = self._describe(call, name)["Instances"]
        return [member["LifecycleState"] for member in members] == ["InService"] * int(call.inputs["minSize"])

    def _refresh_instances(self, call: HandlerCall) -> None:
        """Start an instance refresh if the inputs require one, and do not wait for its end.

        It cancels one that is in progress, as terraform-provider-aws does (startInstanceRefresh of
        internal/service/autoscaling/group.go).
        """
        refresh = call.inputs.get("instanceRefresh")
        if refresh is None or not call.has_changed("launchTemplate", "mixedInstancesPolicy"):
            return
        client, preferences = call.aws.client("autoscaling"), refresh["preferences"]
        arguments = {
            "AutoScalingGroupName": call.id,
            "Strategy": refresh["strategy"],
            "Preferences": {
                "MinHealthyPercentage": preferences["minHealthyPercentage"],
                "InstanceWarmup": int(preferences["instanceWarmup"]),
            },
        }
        try:
            client.start_instance_refresh(**arguments)
        except client.exceptions.InstanceRefreshInProgressFault:
            client.cancel_instance_refresh(AutoScalingGroupName=call.id)
            client.start_instance_refresh(**arguments)

    def _settings(self, call: HandlerCall) -> dict[str, Any]:
        if policy := call.inputs.get("mixedInstancesPolicy"):
            launch = {"MixedInstancesPolicy": _policy(policy)}
        else:
            template = call.inputs["launchTemplate"]
            launch = {"LaunchTemplate": {"LaunchTemplateId": template["id"], "Version": template["version"]}}
        # -1 removes it: API reference, InstanceMaintenancePolicy.
        maintenance = call.inputs.get("instanceMaintenancePolicy") or {
            "minHealthyPercentage": -1,
            "maxHealthyPercentage": -1,
        }
        return {
            **launch,
            "InstanceMaintenancePolicy": to_api_names(maintenance),
            "VPCZoneIdentifier": ",".join(call.inputs["vpcZoneIdentifiers"]),
            **call.api_arguments(
                minSize="MinSize",
                maxSize="MaxSize",
                healthCheckType="HealthCheckType",
                healthCheckGracePeriod="HealthCheckGracePeriod",
                terminationPolicies="TerminationPolicies",
            ),
        }

    def _tags(self, name: str, inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [
            {"ResourceId": name, "ResourceType": "auto-scaling-group", **to_api_names(tag)}
            for tag in inputs.get("tags", [])
        ]

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        group = self._describe(call, call.id)
        if group is None:
            return None
        inputs = to_input_names(group) | {
            "name": call.id,
            "vpcZoneIdentifiers": group["VPCZoneIdentifier"].split(","),
            "suspendedProcesses": [process["ProcessName"] for process in group["SuspendedProcesses"]],
            "tags": [to_input_names(tag) for tag in group["Tags"]],
        }
        if "LaunchTemplate" in group:
            template = group["LaunchTemplate"]
            inputs["launchTemplate"] = {"id": template["LaunchTemplateId"], "version": template["Version"]}
        return ReadResult(inputs=inputs)

    def delete(self, call: HandlerCall) -> None:
        """Terminate the group's instances, then delete the group.

        A description may not contain new instances yet, so that the deletion is refused. It is then repeated, as the
        provider does (terraform-provider-aws, resource aws_autoscaling_group).
        """
        client = call.aws.client("autoscaling")
        client.update_auto_scaling_group(AutoScalingGroupName=call.id, MinSize=0, MaxSize=0, DesiredCapacity=0)
        wait_until(
            f"group {call.id} has no instances",
            lambda: not self._describe(call, call.id)["Instances"],
            _TIMEOUT_SECONDS,
        )
        wait_until(f"group {call.id} can be deleted", lambda: self._is_deletion_accepted(call), _TIMEOUT_SECONDS)
        wait_until(f"group {call.id} is deleted", lambda: self._describe(call, call.id) is None, _TIMEOUT_SECONDS)

    def _is_deletion_accepted(self, call: HandlerCall) -> bool:
        try:
            call.aws.client("autoscaling").delete_auto_scaling_group(AutoScalingGroupName=call.id)
        except ClientError as error:
            if error.response["Error"]["Code"] in {"ResourceInUse", "ScalingActivityInProgress"}:
                return False
            raise
        return True

    def _describe(self, call: HandlerCall, name: str) -> Any:
        client = call.aws.client("autoscaling")
        groups = client.describe_auto_scaling_groups(AutoScalingGroupNames=[name])["AutoScalingGroups"]
        return groups[0] if groups else None


def _policy(inputs: Mapping[str, Any]) -> dict[str, Any]:
    template = inputs["launchTemplate"]
    return {
        "LaunchTemplate": {
            "LaunchTemplateSpecification": to_api_names(template["launchTemplateSpecification"]),
            "Overrides": [to_api_names(override) for override in template["overrides"]],
        },
        "InstancesDistribution": to_api_names(inputs["instancesDistribution"]),
    }


class LifecycleHook(Handler):
    """A lifecycle hook of an Auto Scaling group."""

    type = "aws:autoscaling/lifecycleHook:LifecycleHook"
    keys = input_keys("name", "autoscalingGroupName", "lifecycleTransition", "heartbeatTimeout", "defaultResult")
    name_input = "name"
    replace_on_changes = frozenset({"name", "autoscalingGroupName"})

    def create(self, call: HandlerCall) -> CreateResult:
        """Create the lifecycle hook."""
        name = self.physical_name(call)
        self._put(call, name)
        return name, {"name": name}

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the lifecycle hook."""
        self._put(call, call.id)
        return {}

    def _put(self, call: HandlerCall, name: str) -> None:
        call.aws.client("autoscaling").put_lifecycle_hook(
            LifecycleHookName=name,
            **call.api_arguments(
                autoscalingGroupName="AutoScalingGroupName",
                lifecycleTransition="LifecycleTransition",
                heartbeatTimeout="HeartbeatTimeout",
                defaultResult="DefaultResult",
            ),
        )

    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state, or None when it does not exist."""
        group = self.required_input(call, "autoscalingGroupName")
        hooks = call.aws.client("autoscaling").describe_lifecycle_hooks(
            AutoScalingGroupName=group, LifecycleHookNames=[call.id]
        )["LifecycleHooks"]
        if not hooks:
            return None
        return ReadResult(inputs=to_input_names(hooks[0]) | {"name": call.id, "autoscalingGroupName": group})

    def delete(self, call: HandlerCall) -> None:
        """Delete the lifecycle hook."""
        call.aws.client("autoscaling").delete_lifecycle_hook(
            LifecycleHookName=call.id, AutoScalingGroupName=call.inputs["autoscalingGroupName"]
        )


HANDLERS = (AutoScalingGroup(), LifecycleHook())
