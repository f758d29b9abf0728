"""The KMS key of a stack: bucket, root volumes, file system, logs and notices are under it. It outlives the cluster."""

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.scope import Scope

AUTO_SCALING_ROLE = "AWSServiceRoleForAutoScaling"
_WINDOW_DAYS = 30  # the longest that AWS grants for a change of mind
_USE = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]


@dataclass(frozen=True, kw_only=True)
class StackKeyArgs:
    """`given`: ARN of a key that is there, which is then used as it is. `retained`: id of the one to adopt."""

    scope: Scope
    given: str | None
    retained: str | None


class StackKey(pulumi.ComponentResource):
    """`arn`: what data, volumes and file system are under; `service_arn`: what logs and notices are under.

    They are one key of the stack's own, or, where the first was given, that one and a small one beside it: nobody knows
    whether CloudWatch and the others may use the given one. What is encrypted can't be read once its key is deleted:
    `destroy` keeps the key with the bucket, and the next `up` finds it by its tags and adopts it. The small one goes.
    """

    arn: pulumi.Output[str]
    service_arn: pulumi.Output[str]

    def __init__(self, name: str, args: StackKeyArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:StackKey", name, None, opts)
        self._scope, own = args.scope, pulumi.ResourceOptions(parent=self)
        if args.given is not None:
            self.service_arn = self._key("service-key", "logs and notices", own).arn
            self.arn = pulumi.Output.from_input(args.given)
        else:
            kept = pulumi.ResourceOptions(retain_on_delete=True, import_=args.retained)
            key = self._key("stack-key", "data, volumes, logs and notices", pulumi.ResourceOptions.merge(own, kept))
            self.arn = self.service_arn = key.arn
        self.register_outputs({"arn": self.arn})

    def _key(self, role: str, of: str, opts: pulumi.ResourceOptions) -> aws.kms.Key:
        return aws.kms.Key(
            role,
            description=f"Trainyard stack {self._scope.stack}: {of}",
            enable_key_rotation=True,
            deletion_window_in_days=_WINDOW_DAYS,
            policy=pulumi.Output.json_dumps(key_policy(self._scope)),
            tags=self._scope.tags(role),
            opts=opts,
        )


def key_policy(scope: Scope) -> dict[str, Any]:
    """Who may use the key: the account by its IAM policies, and AWS's services for this account's things only.

    Service-linked roles are named by a condition: a principal that is not there yet, as in a fresh account, would make
    KMS refuse the whole policy. Sources: Auto Scaling user guide, "Required AWS KMS key policy for use with encrypted
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
            _statement("ServiceRoles", anyone, _USE, of_roles),
            _statement(
                "ServiceRolesGrants",
                anyone,
                ["kms:CreateGrant"],
                {**of_roles, "Bool": {"kms:GrantIsForAWSResource": "true"}},
            ),
            _statement(
                "Logs",
                {"Service": f"logs.{scope.region}.{scope.dns_suffix}"},
                _USE,
                {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": log_groups}},
            ),
            _statement(
                "Notices",
                {"Service": [f"cloudwatch.{scope.dns_suffix}", f"budgets.{scope.dns_suffix}"]},
                ["kms:Decrypt", "kms:GenerateDataKey*"],
                {"StringEquals": {"aws:SourceAccount": scope.account}},
            ),
        ],
    }


def _statement(
    sid: str, principal: dict[str, Any], actions: list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    made = {"Sid": sid, "Effect": "Allow", "Principal": principal, "Action": actions, "Resource": "*"}
    return made if condition is None else {**made, "Condition": condition}
