"""What head and workers may do: one role each, by resource and prefix."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from contract import layout, tags
from infra.scope import Scope

Statement = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class IdentityArgs:
    """`secrets`: names of the SSM parameters that the job reads."""

    scope: Scope
    data_bucket_arn: pulumi.Input[str]
    staging_bucket_arn: pulumi.Input[str]
    secrets: Sequence[str]


class Identity(pulumi.ComponentResource):
    """Instance profiles of head and workers."""

    head_profile: pulumi.Output[str]
    worker_profile: pulumi.Output[str]

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Identity", name, None, opts)
        self._scope = args.scope
        self.head_profile = self._profile("head", _head(args))
        self.worker_profile = self._profile("workers", _workers(args))
        self.register_outputs({"head_profile": self.head_profile, "worker_profile": self.worker_profile})

    def _profile(self, role_name: str, statements: list[Statement]) -> pulumi.Output[str]:
        own = pulumi.ResourceOptions(parent=self)
        trust = {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": f"ec2.{self._scope.dns_suffix}"},
        }
        role = aws.iam.Role(
            role_name,
            assume_role_policy=pulumi.Output.json_dumps({"Version": "2012-10-17", "Statement": [trust]}),
            description=f"Trainyard stack {self._scope.stack}: {role_name}",
            tags=self._scope.tags(f"{role_name}-role"),
            opts=own,
        )
        policy = aws.iam.RolePolicy(
            role_name,
            role=role.name,
            policy=pulumi.Output.json_dumps({"Version": "2012-10-17", "Statement": statements}),
            opts=own,
        )
        # Whoever has the profile's name boots with all of the rights: they are there before it.
        profile = aws.iam.InstanceProfile(
            role_name,
            role=role.name,
            tags=self._scope.tags(f"{role_name}-profile"),
            opts=pulumi.ResourceOptions.merge(own, pulumi.ResourceOptions(depends_on=[policy])),
        )
        return profile.name


def _allow(sid: str, actions: Sequence[str], resources: Sequence[Any], **more: Any) -> Statement:
    return {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": list(resources), **more}


def _below(bucket_arn: pulumi.Input[str], *keys: str) -> list[pulumi.Output[str]]:
    return [pulumi.Output.concat(bucket_arn, "/", key) for key in keys]


def _sessions() -> Statement:
    """People reach a node by Session Manager: what its agent asks for, and AWS knows no narrower resource for it.

    AmazonSSMManagedInstanceCore would also let every node read all parameters of the account, others' secrets included.
    """
    channels = ("CreateControlChannel", "CreateDataChannel", "OpenControlChannel", "OpenDataChannel")
    return _allow(
        "Sessions", ["ssm:UpdateInstanceInformation", *(f"ssmmessages:{action}" for action in channels)], ["*"]
    )


def _list(args: IdentityArgs) -> Statement:
    # Without a condition on the prefix: under one, S3 answers 403 in place of 404 for a key that is not there yet.
    return _allow("List", ["s3:ListBucket"], [args.data_bucket_arn, args.staging_bucket_arn])


def _head(args: IdentityArgs) -> list[Statement]:
    """The controller's rights: the lease and the end of its own stack's groups, the run's records, its own events."""
    return [
        _allow(
            "OwnGroups",
            [
                "autoscaling:SetDesiredCapacity",
                "autoscaling:PutScheduledUpdateGroupAction",
                "autoscaling:TerminateInstanceInAutoScalingGroup",
            ],
            ["*"],
            Condition={"StringEquals": {f"aws:ResourceTag/{tags.STACK}": args.scope.stack}},
        ),
        # AWS knows no narrower resource for it.
        _allow("Look", ["autoscaling:DescribeAutoScalingGroups"], ["*"]),
        _sessions(),
        _list(args),
        _allow("ReadStaging", ["s3:GetObject"], _below(args.staging_bucket_arn, "*")),
        _allow("WriteOwnEvents", ["s3:PutObject"], _below(args.staging_bucket_arn, "head/*")),
        _allow("Runs", ["s3:GetObject", "s3:PutObject"], _below(args.data_bucket_arn, "runs/*")),
    ]


def _workers(args: IdentityArgs) -> list[Statement]:
    """A node's rights: what it boots from, the data, and its runs."""
    boots_from = _below(args.staging_bucket_arn, "bundle/*", "job/*", layout.MANIFEST, layout.CURRENT_RUN)
    statements = [
        _sessions(),
        _list(args),
        _allow("ReadStaging", ["s3:GetObject"], boots_from),
        _allow("ReadData", ["s3:GetObject"], _below(args.data_bucket_arn, "datasets/*")),
        _allow(
            "Leave",
            ["autoscaling:CompleteLifecycleAction", "autoscaling:RecordLifecycleActionHeartbeat"],
            ["*"],
            Condition={"StringEquals": {f"aws:ResourceTag/{tags.STACK}": args.scope.stack}},
        ),
        # Delete: a checkpoint is committed by a rename, which in S3 is copy and delete. Versions keep what was deleted.
        _allow(
            "Runs",
            ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            _below(args.data_bucket_arn, "runs/*"),
        ),
    ]
    if args.secrets:
        scope = args.scope
        parameters = f"arn:{scope.partition}:ssm:{scope.region}:{scope.account}:parameter/"
        names = [parameters + name.lstrip("/") for name in sorted(set(args.secrets))]
        statements.append(_allow("JobSecrets", ["ssm:GetParameter", "ssm:GetParameters"], names))
    return statements
