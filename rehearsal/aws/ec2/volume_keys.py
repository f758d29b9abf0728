"""Encrypted volumes of a launch: EC2 uses the KMS key as the launching principal, after the launch call.

An instance whose key can't be used changes from pending to terminated, with only Client.InternalError in its
StateReason: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html
"""

from collections.abc import Iterable
from typing import Any

from moto.ec2.models.instances import StateReason

from rehearsal.aws.autoscaling.service_roles import AUTO_SCALING, service_role
from rehearsal.aws.iam.callers import CALLER
from rehearsal.aws.iam.policies import Principal, account_principals
from rehearsal.aws.storage.key_policies import key_policy_allows, key_request
from rehearsal.aws.storage.keys import find_key

# Source: https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html
_REQUIRED_ACTIONS = (
    "kms:CreateGrant",
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
CODE, MESSAGE = "Client.InternalError", "Client error on launch"


def check_volume_keys(backend: Any, instances: Iterable[Any], by_auto_scaling: bool) -> None:
    """Terminate instances with a volume whose key can't be used by Auto Scaling's service-linked role or the caller."""
    for instance in instances:
        volumes = [backend.get_volume(device.volume_id) for device in instance.block_device_mapping.values()]
        keys = [volume.kms_key_id for volume in volumes if volume.encrypted]
        if not all(_can_use(backend, key, by_auto_scaling) for key in keys):
            instance.terminate()
            instance.terminated_at = instance.launched_at  # it never ran and is not billed
            instance.state_reason = StateReason(f"{CODE}: {MESSAGE}", CODE)


def _can_use(backend: Any, key_id: str, by_auto_scaling: bool) -> bool:
    key = find_key(backend.account_id, backend.region_name, key_id)
    if key is None or key.key_state != "Enabled":
        return False
    if any(alias.startswith("alias/aws/") for alias in key.aliases):
        return True  # every principal of the account can use an AWS managed key
    requests = [key_request(action, key, "ec2") for action in _REQUIRED_ACTIONS]
    if not by_auto_scaling:
        caller = CALLER.get()
        return caller is None or all(map(caller.is_allowed, requests))
    role = service_role(backend.account_id, AUTO_SCALING)
    principal = Principal(frozenset([role.arn]), account=account_principals(backend.account_id))
    context = {"aws:principalarn": role.arn}
    return all(key_policy_allows(key, request.with_context(context), principal) for request in requests)
