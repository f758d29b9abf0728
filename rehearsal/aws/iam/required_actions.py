"""What rights an API call needs: its actions under their names in IAM, each with the resource that it touches."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

from moto.autoscaling.models import autoscaling_backends
from moto.ssm.models import ssm_backends

from rehearsal.aws.iam.policies import Ask
from rehearsal.aws.iam.required_actions_s3 import s3_needs
from rehearsal.aws.operations import Call
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage.key_policies import key_ask
from rehearsal.aws.storage.keys import find_key

# Actions on a group that the request names. Source:
# https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2autoscaling.html
_ON_GROUP = frozenset(
    [
        "AttachInstances",
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
        "SuspendProcesses",
        "UpdateAutoScalingGroup",
    ]
)
_ON_MEMBER = frozenset(["SetInstanceHealth", "TerminateInstanceInAutoScalingGroup"])


def needs(call: Call, environ: dict[str, Any], body: bytes) -> Iterator[Ask]:
    """The rights, all of which the caller must have. Raises NotImplementedError where they are not known."""
    action = f"{call.service}:{call.operation}"
    if call.service == "s3":
        yield from s3_needs(call, environ, body)
    elif call.service == "autoscaling":
        yield _on_groups(action, call, parse_qs(body.decode()))
    elif action in {"ssm:GetParameter", "ssm:GetParameters"}:
        yield from _on_parameters(action, call, json.loads(body))
    elif call.service == "kms" and (named := json.loads(body).get("KeyId")):
        key = find_key(ACCOUNT, call.region, named)
        yield Ask(action, None) if key is None else key_ask(action, key)
    elif call.service == "sts":
        if call.operation != "GetCallerIdentity":  # which nobody is denied
            raise NotImplementedError(f"{action} by a role: trust policies are not looked at")
    elif call.service == "ec2" and call.operation.startswith("Describe"):
        yield Ask(action, "*")
    else:
        yield Ask(action, None)


def _on_groups(action: str, call: Call, asked: dict[str, list[str]]) -> Ask:
    backend = autoscaling_backends[ACCOUNT][call.region]
    named, member = asked.get("AutoScalingGroupName", [""])[0], asked.get("InstanceId", [""])[0]
    if call.operation.startswith("Describe"):
        return Ask(action, "*", tags={})
    if call.operation in _ON_GROUP:
        found = backend.autoscaling_groups.get(named)
    elif call.operation in _ON_MEMBER:
        groups = backend.autoscaling_groups.values()
        found = next((one for one in groups if any(each.instance.id == member for each in one.instance_states)), None)
    else:
        return Ask(action, None)
    if found is None:  # no tag can speak for a group that is not there
        arn = f"arn:aws:autoscaling:{call.region}:{ACCOUNT}:autoScalingGroup:*:autoScalingGroupName/{named}"
        return Ask(action, arn, tags={})
    return Ask(action, found.arn, tags={tag["Key"]: tag["Value"] for tag in found.tags})


def _on_parameters(action: str, call: Call, asked: dict[str, Any]) -> Iterator[Ask]:
    """A parameter's value is under a key: AWS's own for it, or one of the customer's."""
    backend = ssm_backends[ACCOUNT][call.region]
    for name in asked.get("Names") or [asked.get("Name", "")]:
        if name.startswith("arn:"):
            yield Ask(action, name)
            continue
        plain = name.partition(":")[0]  # without version or label
        yield Ask(action, f"arn:aws:ssm:{call.region}:{ACCOUNT}:parameter/{plain.lstrip('/')}")
        found = backend._parameters.get(plain) if asked.get("WithDecryption") else None
        under = found[-1].keyid if found else None
        if under and under != "alias/aws/ssm":
            key = find_key(ACCOUNT, call.region, under)
            if key is not None:
                yield key_ask("kms:Decrypt", key, "ssm")
