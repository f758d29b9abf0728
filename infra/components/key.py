"""The KMS key of a stack, for bucket, root volumes, file system, logs and notifications. `destroy` retains it."""

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.components.children import child_options
from infra.scope import Scope

AUTO_SCALING_ROLE = "AWSServiceRoleForAutoScaling"
_DELETION_WINDOW_DAYS = 30  # the maximum
_USE_ACTIONS = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]


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
            usage = "data, volumes, logs and notifications"
            key = self._key("stack-key", usage, retain_on_delete=True, import_=args.retained)
            self.arn = self.service_arn = key.arn
        # infra/lookups/deployed.py reads account and region before the next update.
        self.register_outputs({"arn": self.arn, "account": args.scope.account, "region": args.scope.region})

    def _key(self, role: str, usage: str, **options: Any) -> aws.kms.Key:
        return aws.kms.Key(
            f"{self._name_prefix}-{role}",
            description=f"Trainyard stack {self._scope.stack}: {usage}",
            enable_key_rotation=True,
            deletion_window_in_days=_DELETION_WINDOW_DAYS,
            policy=pulumi.Output.json_dumps(key_policy(self._scope)),
            tags=self._scope.tags(role),
            opts=child_options(self, role, **options),
        )


def key_policy(scope: Scope) -> dict[str, Any]:
    """Return the key policy: the account by its IAM policies, and AWS services for resources of this account only.

    A condition names the service-linked roles: KMS refuses a policy with a principal that does not exist, such as
    theirs in a new account. Sources: Auto Scaling user guide, "Required AWS KMS key policy for use with encrypted
    volumes"; CloudWatch Logs user guide, "Encrypt log data"; SNS developer guide, "Enable compatibility between event
    sources from AWS services and encrypted topics"; FSx for Lustre guide, "Using server-side encrypted S3 buckets".
    """
    account = f"arn:{scope.partition}:iam::{scope.account}"
    service_roles = [
        f"{account}:role/aws-service-role/autoscaling.{scope.dns_suffix}/{AUTO_SCALING_ROLE}",
        f"{account}:role/aws-service-role/s3.data-source.lustre.fsx.{scope.dns_suffix}/AWSServiceRoleForFSxS3Access_*",
    ]
    of_roles = {
        "StringEquals": {"kms:CallerAccount": scope.account},
        "ArnLike": {"aws:PrincipalArn": service_roles},
    }
    log_groups = f"arn:{scope.partition}:logs:{scope.region}:{scope.account}:log-group:*"
    anyone = {"AWS": "*"}
    return {
        "Version": "2012-10-17",
        "Statement": [
            _statement("Account", {"AWS": f"{account}:root"}, ["kms:*"]),
            _statement("ServiceRoles", anyone, _USE_ACTIONS, of_roles),
            _statement(
                "ServiceRolesGrants",
                anyone,
                ["kms:CreateGrant"],
                {**of_roles, "Bool": {"kms:GrantIsForAWSResource": "true"}},
            ),
            _statement(
                "Logs",
                {"Service": f"logs.{scope.region}.{scope.dns_suffix}"},
                _USE_ACTIONS,
                {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": log_groups}},
            ),
            _statement(
                "Notifications",
                {"Service": [f"cloudwatch.{scope.dns_suffix}", f"budgets.{scope.dns_suffix}"]},
                ["kms:Decrypt", "kms:GenerateDataKey*"],
                {"StringEquals": {"aws:SourceAccount": scope.account}},
            ),
        ],
    }


def _statement(
    sid: str, principal: dict[str, Any], actions: list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement = {"Sid": sid, "Effect": "Allow", "Principal": principal, "Action": actions, "Resource": "*"}
    return statement if condition is None else {**statement, "Condition": condition}
