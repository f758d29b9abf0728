"""Encrypted volumes of a launch: EC2 asks KMS for whoever launches, after it has said yes to the launch.

An instance whose key can't be used goes from pending to terminated, and its StateReason says no more than
Client.InternalError: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/troubleshooting-launch.html
"""

from collections.abc import Iterable
from typing import Any

from moto.ec2.models.instances import StateReason

from rehearsal.aws.autoscaling.service_roles import AUTO_SCALING, service_role
from rehearsal.aws.iam.callers import CALLER
from rehearsal.aws.iam.policies import Who, account_of
from rehearsal.aws.storage.key_policies import key_ask, principal_may
from rehearsal.aws.storage.keys import find_key

# Source: https://docs.aws.amazon.com/autoscaling/ec2/userguide/key-policy-requirements-EBS-encryption.html
_USES = (
    "kms:CreateGrant",
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)
CODE, MESSAGE = "Client.InternalError", "Client error on launch"


def open_volumes(backend: Any, instances: Iterable[Any], by_group: bool) -> None:
    """Terminate those with a volume under a key that can't be used: by Auto Scaling's role, or by the caller's."""
    for instance in instances:
        volumes = [backend.get_volume(device.volume_id) for device in instance.block_device_mapping.values()]
        keys = [volume.kms_key_id for volume in volumes if volume.encrypted]
        if not all(_opens(backend, key, by_group) for key in keys):
            instance.terminate()
            instance.terminated_at = instance.launched_at  # it never ran, and is not billed
            instance.state_reason = StateReason(f"{CODE}: {MESSAGE}", CODE)


def _opens(backend: Any, name: str, by_group: bool) -> bool:
    key = find_key(backend.account_id, backend.region_name, name)
    if key is None or key.key_state != "Enabled":
        return False
    if any(alias.startswith("alias/aws/") for alias in key.aliases):
        return True  # AWS's own key is open to all of the account
    asks = [key_ask(use, key, "ec2") for use in _USES]
    if not by_group:
        caller = CALLER.get()
        return caller is None or all(map(caller.may, asks))
    role = service_role(backend.account_id, AUTO_SCALING)
    who = Who(frozenset([role.arn]), account=account_of(backend.account_id))
    return all(principal_may(key, ask.also({"aws:principalarn": role.arn}), who) for ask in asks)
