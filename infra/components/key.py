"""The KMS key of a stack, for bucket, root volumes, file system, logs and notifications. `destroy` retains it."""

import json
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.components.children import child_options
from infra.scope import Scope
from trainyard.aws.stack_key import STACK_KEY_USAGE, key_description, key_policy

_DELETION_WINDOW_DAYS = 30  # the maximum


@dataclass(frozen=True, kw_only=True)
class StackKeyArgs:
    """Arguments of StackKey.

    `existing` is the ARN of a key to use unchanged, `retained` the id of a retained key to import.
    """

    scope: Scope
    existing: str | None
    retained: str | None


class StackKey(pulumi.ComponentResource):
    """Keys of a stack: `arn` encrypts data, volumes and file system, `service_arn` logs and notifications.

    Both are the same key, unless the stack uses an existing key: then a second key serves logs and notifications,
    because the policy of the existing one may not allow CloudWatch and Budgets. `destroy` retains the stack's key with
    the bucket, whose objects are unreadable without it, and the next `up` imports it. The second key is deleted.
    """

    TYPE = "trainyard:infra:StackKey"

    arn: pulumi.Output[str]
    service_arn: pulumi.Output[str]

    def __init__(self, name: str, args: StackKeyArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(self.TYPE, name, None, opts)
        self._name_prefix, self._scope = name, args.scope
        if args.existing is not None:
            self.service_arn = self._key("service-key", "logs and notifications").arn
            self.arn = pulumi.Output.from_input(args.existing)
        else:
            key = self._key("stack-key", STACK_KEY_USAGE, retain_on_delete=True, import_=args.retained)
            self.arn = self.service_arn = key.arn
        # infra/lookups/deployed.py reads account and region before the next update.
        self.register_outputs({"arn": self.arn, "account": args.scope.account, "region": args.scope.region})

    def _key(self, role: str, usage: str, **options: Any) -> aws.kms.Key:
        return aws.kms.Key(
            f"{self._name_prefix}-{role}",
            description=key_description(self._scope.stack, usage),
            enable_key_rotation=True,
            deletion_window_in_days=_DELETION_WINDOW_DAYS,
            policy=json.dumps(key_policy(self._scope.account, self._scope.region, self._scope.partition)),
            tags=self._scope.tags(role),
            opts=child_options(self, role, **options),
        )
