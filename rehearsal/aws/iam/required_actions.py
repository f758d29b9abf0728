"""The IAM actions that an API call requires, each with the resource that it accesses."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

from moto.autoscaling.models import autoscaling_backends
from moto.ssm.models import ssm_backends

from rehearsal.aws.iam.policies import AccessRequest
from rehearsal.aws.iam.required_actions_iam import iam_request, pass_role, passed_roles
from rehearsal.aws.iam.required_actions_s3 import s3_required_requests
from rehearsal.aws.iam.required_actions_tags import TAGGED_RESOURCES, tagged_requests
from rehearsal.aws.operations import Call
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage.key_policies import key_request
from rehearsal.aws.storage.keys import find_key

# Actions on a group that the request names. Source:
# https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2autoscaling.html
_GROUP_ACTIONS = frozenset(
    [
        "AttachInstances",
        "CancelInstanceRefresh",
        "CompleteLifecycleAction",
        "DeleteAutoScalingGroup",
        "DeleteLifecycleHook",
        "DeleteScheduledAction",
        "DetachInstances",
        "EnterStandby",
        "ExitStandby",
        "LaunchInstances",
        "PutLifecycleHook",
        "PutScheduledUpdateGroupAction",
        "RecordLifecycleActionHeartbeat",
        "ResumeProcesses",
        "SetDesiredCapacity",
        "SetInstanceProtection",
        "StartInstanceRefresh",
        "SuspendProcesses",
        "UpdateAutoScalingGroup",
    ]
)
_SIZED_ACTIONS = frozenset(["PutScheduledUpdateGroupAction", "UpdateAutoScalingGroup"])  # with size condition keys
_INSTANCE_ACTIONS = frozenset(["SetInstanceHealth", "TerminateInstanceInAutoScalingGroup"])


def required_requests(call: Call, environ: dict[str, Any], body: bytes) -> Iterator[AccessRequest]:
    """Yield the access requests, all of which must be allowed. Raises NotImplementedError if they are unknown."""
    action = iam_action(call.service, call.operation)
    if call.service == "s3":
        yield from s3_required_requests(call, environ, body)
    elif call.service == "autoscaling":
        yield _group_request(action, call, parse_qs(body.decode()))
    elif action in {"ssm:GetParameter", "ssm:GetParameters"}:
        yield from _parameter_requests(action, call, json.loads(body))
    elif call.service == "kms" and (key_id := json.loads(body).get("KeyId")):
        key = find_key(ACCOUNT, call.region, key_id)
        yield AccessRequest(action, None) if key is None else key_request(action, key)
    elif call.service == "sts":
        if call.operation == "AssumeRole":
            yield AccessRequest(action, parse_qs(body.decode())["RoleArn"][0])
        elif call.operation != "GetCallerIdentity":  # always allowed
            raise NotImplementedError(f"{action} by a role: its authorization is not evaluated")
    elif call.service == "iam":
        yield iam_request(call.operation, parse_qs(body.decode()))
        yield from passed_roles(call, parse_qs(body.decode()))
    elif call.service == "ec2" and call.operation.startswith("Describe"):
        yield AccessRequest(action, "*")
    elif action in TAGGED_RESOURCES:
        yield from tagged_requests(action, call.region, body)
    else:
        yield AccessRequest(action, None)
        if call.service == "scheduler" and (target := json.loads(body or b"{}").get("Target")):
            yield pass_role(target["RoleArn"], "scheduler")
        elif call.service == "ec2":
            yield from passed_roles(call, parse_qs(body.decode()))


def iam_action(service: str, operation: str) -> str:
    """Return the IAM action of an operation, except of S3.

    Cloud Control has the actions of CloudFormation; AWS Budgets has one for reads and one for changes.
    https://docs.aws.amazon.com/cloudcontrolapi/latest/userguide/security.html
    https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsbudgetservice.html
    """
    if service == "cloudcontrolapi":
        return f"cloudformation:{operation}"
    if service == "budgets":
        return "budgets:ViewBudget" if operation.startswith("Describe") else "budgets:ModifyBudget"
    return f"{service}:{operation}"


def _group_request(action: str, call: Call, parameters: dict[str, list[str]]) -> AccessRequest:
    backend = autoscaling_backends[ACCOUNT][call.region]
    group_name, instance_id = parameters.get("AutoScalingGroupName", [""])[0], parameters.get("InstanceId", [""])[0]
    if call.operation.startswith("Describe"):
        return AccessRequest(action, "*", tags={})
    if call.operation in _GROUP_ACTIONS:
        group = backend.autoscaling_groups.get(group_name)
    elif call.operation in _INSTANCE_ACTIONS:
        groups = backend.autoscaling_groups.values()
        group = next(
            (group for group in groups if any(m.instance.id == instance_id for m in group.instance_states)), None
        )
    else:
        return AccessRequest(action, None)
    if group is None:  # a condition on tags cannot match a group that does not exist
        arn = f"arn:aws:autoscaling:{call.region}:{ACCOUNT}:autoScalingGroup:*:autoScalingGroupName/{group_name}"
        return AccessRequest(action, arn, tags={})
    sizes = {f"autoscaling:{name.lower()}": parameters.get(name, [None])[0] for name in ("MinSize", "MaxSize")}
    context = sizes if call.operation in _SIZED_ACTIONS else {}
    return AccessRequest(action, group.arn, context, {tag["Key"]: tag["Value"] for tag in group.tags})


def _parameter_requests(action: str, call: Call, parameters: dict[str, Any]) -> Iterator[AccessRequest]:
    """Yield the requests for parameters and for the customer managed keys that decrypt them."""
    backend = ssm_backends[ACCOUNT][call.region]
    for name in parameters.get("Names") or [parameters.get("Name", "")]:
        if name.startswith("arn:"):
            yield AccessRequest(action, name)
            continue
        base_name = name.partition(":")[0]  # without version or label
        yield AccessRequest(action, f"arn:aws:ssm:{call.region}:{ACCOUNT}:parameter/{base_name.lstrip('/')}")
        versions = backend._parameters.get(base_name) if parameters.get("WithDecryption") else None
        key_id = versions[-1].keyid if versions else None
        if key_id and key_id != "alias/aws/ssm":
            key = find_key(ACCOUNT, call.region, key_id)
            if key is not None:
                yield key_request("kms:Decrypt", key, "ssm")
