"""Log groups under a customer's key: CloudWatch Logs takes none that its policy does not let it use.

Source: https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/encrypt-log-data-kms.html
"""

import json
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.logs.exceptions import ResourceNotFoundException
from moto.logs.models import LogsBackend
from moto.logs.responses import LogsResponse

from rehearsal.aws.extension import extend
from rehearsal.aws.iam.service_authorization import may_use
from rehearsal.aws.storage.keys import find_key

_USES = (
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:Encrypt",
    "kms:GenerateDataKey",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)


def install() -> None:
    """moto keeps a group's key unseen, has no call to change it, and keeps the tags of a group that is deleted."""
    make, drop = LogsBackend.create_log_group, LogsBackend.delete_log_group

    def create_log_group(self: Any, log_group_name: str, tags: dict[str, str], **given: Any) -> Any:
        if given.get("kmsKeyId"):
            _check(self, log_group_name, given["kmsKeyId"])
        return make(self, log_group_name, tags or {}, **given)

    def delete_log_group(self: Any, log_group_name: str) -> None:
        group = self.groups.get(log_group_name)
        drop(self, log_group_name)
        self.tagger.delete_all_tags_for_resource(group.arn)

    extend(LogsBackend, create_log_group, delete_log_group)
    extend(LogsResponse, associate_kms_key, disassociate_kms_key)


def associate_kms_key(self: Any) -> str:
    group = _group(self)
    _check(self.logs_backend, group.name, self._get_param("kmsKeyId"))
    group.kms_key_id = self._get_param("kmsKeyId")
    return json.dumps({})


def disassociate_kms_key(self: Any) -> str:
    _group(self).kms_key_id = None
    return json.dumps({})


def _group(response: Any) -> Any:
    name = response._get_param("logGroupName")
    if name is None:
        raise NotImplementedError("a log group that is named by resourceIdentifier")
    if name not in response.logs_backend.groups:
        raise ResourceNotFoundException
    return response.logs_backend.groups[name]


def _check(backend: Any, name: str, key_arn: str) -> None:
    arn = f"arn:{backend.partition}:logs:{backend.region_name}:{backend.account_id}:log-group:{name}"
    key = find_key(backend.account_id, backend.region_name, key_arn)
    service, about = f"logs.{backend.region_name}.amazonaws.com", {"kms:encryptioncontext:aws:logs:arn": arn}
    if not may_use(key, _USES, service, arn, about):
        raise JsonRESTError(
            "AccessDeniedException",
            f"The specified KMS key does not exist or is not allowed to be used with Arn '{arn}'",
        )
