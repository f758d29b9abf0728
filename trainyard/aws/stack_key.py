"""Policy of the KMS key of a stack. The Pulumi program creates the key, or before its first update `data put`."""

from typing import Any

AUTO_SCALING_ROLE = "AWSServiceRoleForAutoScaling"
STACK_KEY_USAGE = "data, volumes, logs and notifications"
DNS_SUFFIXES = {"aws-cn": "amazonaws.com.cn"}  # of partitions, where it is not amazonaws.com
_USE_ACTIONS = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]


def key_description(stack: str, usage: str) -> str:
    """Return the description of a key of a stack."""
    return f"Trainyard stack {stack}: {usage}"


def key_policy(account_id: str, region: str, partition: str) -> dict[str, Any]:
    """Return the key policy: the account by its IAM policies, and AWS services for resources of this account only.

    A condition names the service-linked roles: KMS refuses a policy with a principal that does not exist, such as
    theirs in a new account. Sources: Auto Scaling user guide, "Required AWS KMS key policy for use with encrypted
    volumes"; CloudWatch Logs user guide, "Encrypt log data"; SNS developer guide, "Enable compatibility between event
    sources from AWS services and encrypted topics"; FSx for Lustre guide, "Using server-side encrypted S3 buckets".
    """
    dns_suffix = DNS_SUFFIXES.get(partition, "amazonaws.com")
    account = f"arn:{partition}:iam::{account_id}"
    service_roles = [
        f"{account}:role/aws-service-role/autoscaling.{dns_suffix}/{AUTO_SCALING_ROLE}",
        f"{account}:role/aws-service-role/s3.data-source.lustre.fsx.{dns_suffix}/AWSServiceRoleForFSxS3Access_*",
    ]
    of_roles = {
        "StringEquals": {"kms:CallerAccount": account_id},
        "ArnLike": {"aws:PrincipalArn": service_roles},
    }
    log_groups = f"arn:{partition}:logs:{region}:{account_id}:log-group:*"
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
                {"Service": f"logs.{region}.{dns_suffix}"},
                _USE_ACTIONS,
                {"ArnLike": {"kms:EncryptionContext:aws:logs:arn": log_groups}},
            ),
            _statement(
                "Notifications",
                {"Service": [f"cloudwatch.{dns_suffix}", f"budgets.{dns_suffix}"]},
                ["kms:Decrypt", "kms:GenerateDataKey*"],
                {"StringEquals": {"aws:SourceAccount": account_id}},
            ),
        ],
    }


def _statement(
    sid: str, principal: dict[str, Any], actions: list[str], condition: dict[str, Any] | None = None
) -> dict[str, Any]:
    statement = {"Sid": sid, "Effect": "Allow", "Principal": principal, "Action": actions, "Resource": "*"}
    return statement if condition is None else {**statement, "Condition": condition}
