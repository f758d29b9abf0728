"""Log groups under a customer managed key: the key policy must allow CloudWatch Logs to use it.

Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html
"""

import json
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.logs.exceptions import ResourceNotFoundException
from moto.logs.models import LogsBackend
from moto.logs.responses import LogsResponse

from rehearsal.aws.iam.service_authorization import can_use_key
from rehearsal.aws.moto_extension import extend
from rehearsal.aws.storage.keys import find_key

_REQUIRED_ACTIONS = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)


def install() -> None:
    """Extend moto, which does not check keys, cannot change the key of a group, and keeps tags of deleted groups."""
    moto_create, moto_delete = LogsBackend.create_log_group, LogsBackend.delete_log_group

    def create_log_group(self: Any, log_group_name: str, tags: dict[str, str], **kwargs: Any) -> Any:
        if kwargs.get("kmsKeyId"):
            _validate_key(self, log_group_name, kwargs["kmsKeyId"])
        return moto_create(self, log_group_name, tags or {}, **kwargs)

    def delete_log_group(self: Any, log_group_name: str) -> None:
        group = self.groups.get(log_group_name)
        moto_delete(self, log_group_name)
        self.tagger.delete_all_tags_for_resource(group.arn)

    extend(LogsBackend, create_log_group, delete_log_group)
    extend(LogsResponse, associate_kms_key, disassociate_kms_key)


def associate_kms_key(self: Any) -> str:
    """Set the KMS key of a log group."""
    group = _group(self)
    _validate_key(self.logs_backend, group.name, self._get_param("kmsKeyId"))
    group.kms_key_id = self._get_param("kmsKeyId")
    return json.dumps({})


def disassociate_kms_key(self: Any) -> str:
    """Remove the KMS key of a log group."""
    _group(self).kms_key_id = None
    return json.dumps({})


def _group(response: Any) -> Any:
    name = response._get_param("logGroupName")
    if name is None:
        raise NotImplementedError("a log group with resourceIdentifier")
    if name not in response.logs_backend.groups:
        raise ResourceNotFoundException
    return response.logs_backend.groups[name]


def _validate_key(backend: Any, name: str, key_arn: str) -> None:
    arn = f"arn:{backend.partition}:logs:{backend.region_name}:{backend.account_id}:log-group:{name}"
    key = find_key(backend.account_id, backend.region_name, key_arn)
    service, context = f"logs.{backend.region_name}.amazonaws.com", {"kms:encryptioncontext:aws:logs:arn": arn}
    if not can_use_key(key, _REQUIRED_ACTIONS, service, arn, context):
        raise JsonRESTError(
            "AccessDeniedException",
            f"The specified KMS key does not exist or is not allowed to be used with Arn '{arn}'",
        )
