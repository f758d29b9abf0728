"""What head and workers may do: one role each, by resource and prefix."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from infra.policy.unscoped import UNSCOPED
from infra.scope import Scope
from trainyard.aws import tags
from trainyard.aws.ecr import EcrImage
from trainyard.models import layout

Statement = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class IdentityArgs:
    """`key_arn`: the KMS key of the data bucket. `secrets`: names of the SSM parameters that the job reads.

    `wheels`: prefix in S3 (s3://bucket/prefix/) that nodes install Python packages from. `image`: the job's, in ECR.
    """

    scope: Scope
    data_bucket_arn: pulumi.Input[str]
    staging_bucket_arn: pulumi.Input[str]
    key_arn: pulumi.Input[str]
    secrets: Sequence[str]
    wheels: str | None
    image: EcrImage | None


class Identity(pulumi.ComponentResource):
    """Instance profiles of head and workers."""

    head_profile: pulumi.Output[str]
    worker_profile: pulumi.Output[str]

    def __init__(self, name: str, args: IdentityArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Identity", name, None, opts)
        self.head_profile = self._profile("head", args.scope, _head(args))
        self.worker_profile = self._profile("workers", args.scope, _workers(args))
        self.register_outputs({"head_profile": self.head_profile, "worker_profile": self.worker_profile})

    def _profile(self, name: str, scope: Scope, statements: list[Statement]) -> pulumi.Output[str]:
        own = pulumi.ResourceOptions(parent=self)
        role, policy = service_role(name, scope, "ec2", statements, own)
        # Whoever has the profile's name boots with all of the rights: they are there before it.
        profile = aws.iam.InstanceProfile(
            name,
            role=role.name,
            tags=scope.tags(f"{name}-profile"),
            opts=pulumi.ResourceOptions.merge(own, pulumi.ResourceOptions(depends_on=[policy])),
        )
        return profile.name


def service_role(
    name: str, scope: Scope, service: str, statements: list[Statement], opts: pulumi.ResourceOptions
) -> tuple[aws.iam.Role, aws.iam.RolePolicy]:
    """A role that a service of AWS takes on, and its one policy. EC2 itself gives its instances no source to name."""
    trust: Statement = {
        "Effect": "Allow",
        "Action": "sts:AssumeRole",
        "Principal": {"Service": f"{service}.{scope.dns_suffix}"},
    }
    if service != "ec2":
        trust["Condition"] = {"StringEquals": {"aws:SourceAccount": scope.account}}
    role = aws.iam.Role(
        name,
        assume_role_policy=pulumi.Output.json_dumps({"Version": "2012-10-17", "Statement": [trust]}),
        description=f"Trainyard stack {scope.stack}: {name}",
        permissions_boundary=scope.boundary,
        tags=scope.tags(f"{name}-role"),
        opts=opts,
    )
    policy = aws.iam.RolePolicy(
        name,
        role=role.name,
        policy=pulumi.Output.json_dumps({"Version": "2012-10-17", "Statement": statements}),
        opts=opts,
    )
    return role, policy


def _allow(sid: str, actions: Sequence[str], resources: Sequence[Any], **more: Any) -> Statement:
    return {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": list(resources), **more}


def _unscoped(sid: str, *actions: str) -> Statement:
    assert all(action in UNSCOPED for action in actions), f"{actions}: say in UNSCOPED why"
    return _allow(sid, actions, ["*"])


def _below(bucket_arn: pulumi.Input[str], *keys: str) -> list[pulumi.Output[str]]:
    return [pulumi.Output.concat(bucket_arn, "/", key) for key in keys]


def _sessions() -> Statement:
    """People reach a node by Session Manager: what its agent asks for.

    AmazonSSMManagedInstanceCore would also let every node read all parameters of the account, others' secrets included.
    """
    return _unscoped("Sessions", *(action for action in UNSCOPED if action.startswith(("ssm:", "ssmmessages:"))))


def _list(args: IdentityArgs) -> Statement:
    # Without a condition on the prefix: under one, S3 answers 403 in place of 404 for a key that is not there yet.
    return _allow("List", ["s3:ListBucket"], [args.data_bucket_arn, args.staging_bucket_arn])


def _own_groups(args: IdentityArgs, sid: str, *actions: str) -> Statement:
    """Actions on this stack's groups: their names are made by the engine, so a tag tells them."""
    scope = args.scope
    groups = f"arn:{scope.partition}:autoscaling:{scope.region}:{scope.account}:autoScalingGroup:*"
    tagged = {"StringEquals": {f"aws:ResourceTag/{tags.STACK}": scope.stack}}
    return _allow(sid, [f"autoscaling:{action}" for action in actions], [groups], Condition=tagged)


def _data_key(args: IdentityArgs) -> Statement:
    """S3 asks KMS in the node's name; nobody else may be asked so."""
    via = f"s3.{args.scope.region}.{args.scope.dns_suffix}"
    only = {"StringEquals": {"kms:ViaService": via}}
    return _allow("DataKey", ["kms:Decrypt", "kms:GenerateDataKey"], [args.key_arn], Condition=only)


def _wheels(args: IdentityArgs) -> list[Statement]:
    """A mirror of wheels in a bucket of the user's own."""
    if args.wheels is None:
        return []
    bucket, prefix = layout.split_s3_uri(args.wheels)
    arn = f"arn:{args.scope.partition}:s3:::{bucket}"
    below = {"StringLike": {"s3:prefix": f"{prefix}*"}}
    return [
        _allow("ListWheels", ["s3:ListBucket"], [arn], Condition=below),
        _allow("ReadWheels", ["s3:GetObject"], [f"{arn}/{prefix}*"]),
    ]


def _image(args: IdentityArgs) -> list[Statement]:
    """A pull of the job's image. A registry of another account must admit this one, as AWS's own do.

    ECR user guide, "AWS managed policies": what AmazonEC2ContainerRegistryPullOnly allows, for one repository.
    """
    if args.image is None:
        return []
    image = args.image
    repository = f"arn:{args.scope.partition}:ecr:{image.region}:{image.account}:repository/{image.repository}"
    return [
        _unscoped("RegistryToken", "ecr:GetAuthorizationToken"),
        _allow("JobImage", ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"], [repository]),
    ]


def _head(args: IdentityArgs) -> list[Statement]:
    """The controller's rights: lease, end and members' health of its own stack's groups, the runs' records, its own
    events."""
    return [
        _own_groups(
            args,
            "OwnGroups",
            "SetDesiredCapacity",
            "PutScheduledUpdateGroupAction",
            "TerminateInstanceInAutoScalingGroup",
            "SetInstanceHealth",
        ),
        _unscoped("Look", "autoscaling:DescribeAutoScalingGroups"),
        _sessions(),
        _list(args),
        _data_key(args),
        _allow("ReadStaging", ["s3:GetObject"], _below(args.staging_bucket_arn, "*")),
        _allow("WriteOwnEvents", ["s3:PutObject"], _below(args.staging_bucket_arn, "head/*")),
        _allow("Runs", ["s3:GetObject", "s3:PutObject"], _below(args.data_bucket_arn, "runs/*")),
        *_wheels(args),
    ]


def _workers(args: IdentityArgs) -> list[Statement]:
    """A node's rights: what it boots from, the data, and its runs."""
    boots_from = _below(args.staging_bucket_arn, "bundle/*", "job/*", layout.MANIFEST, layout.CURRENT_RUN)
    statements = [
        _sessions(),
        _list(args),
        _data_key(args),
        _allow("ReadStaging", ["s3:GetObject"], boots_from),
        _allow("WriteBakeEvents", ["s3:PutObject"], _below(args.staging_bucket_arn, f"{layout.BAKE_EVENTS}*")),
        _allow("ReadData", ["s3:GetObject"], _below(args.data_bucket_arn, "datasets/*")),
        _own_groups(args, "Leave", "CompleteLifecycleAction", "RecordLifecycleActionHeartbeat"),
        # Delete: a checkpoint is committed by a rename, which in S3 is copy and delete. Versions keep what was deleted.
        _allow(
            "Runs",
            ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"],
            _below(args.data_bucket_arn, "runs/*"),
        ),
        *_wheels(args),
        *_image(args),
    ]
    if args.secrets:
        scope = args.scope
        parameters = f"arn:{scope.partition}:ssm:{scope.region}:{scope.account}:parameter/"
        names = [parameters + name.lstrip("/") for name in sorted(set(args.secrets))]
        statements.append(_allow("JobSecrets", ["ssm:GetParameter", "ssm:GetParameters"], names))
    return statements
