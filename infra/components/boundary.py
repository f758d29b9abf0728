"""The permissions boundary of the stack's roles: the most that any of them can ever do.

A boundary grants no permissions. An operator who can create roles only with this boundary, and cannot change it,
cannot create a role that changes IAM or reads other data of the account.
https://docs.aws.amazon.com/IAM/latest/UserGuide/access_policies_boundaries.html
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.statements import Statement, allow, policy_document, stack_groups, stack_reservations
from infra.scope import Scope
from trainyard.aws.ecr import EcrImage
from trainyard.models.layout import split_s3_uri


@dataclass(frozen=True, kw_only=True)
class BoundaryArgs:
    """Arguments of Boundary.

    `bucket_arns`: of the data and the staging bucket. `key_arns`: KMS keys of the stack, and of the job's sources.
    `sources`: S3 prefixes that nodes read in other buckets. `secrets`: names of the SSM parameters of the job.
    """

    scope: Scope
    bucket_arns: Sequence[pulumi.Input[str]]
    key_arns: Sequence[pulumi.Input[str]]
    sources: Sequence[str]
    secrets: Sequence[str]
    image: EcrImage | None


class Boundary(pulumi.ComponentResource):
    """The boundary policy, with the path of the stack's roles."""

    arn: pulumi.Output[str]

    def __init__(self, name: str, args: BoundaryArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:Boundary", name, None, opts)
        scope = args.scope
        policy = aws.iam.Policy(
            name,
            path=scope.iam_path,
            description=f"Trainyard stack {scope.stack}: permissions boundary of its roles",
            policy=policy_document(*_statements(args)),
            tags=scope.tags("boundary"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.arn = policy.arn
        self.register_outputs({"arn": self.arn})


def _statements(args: BoundaryArgs) -> list[Statement]:
    scope = args.scope
    objects = [pulumi.Output.concat(arn, "/*") for arn in args.bucket_arns]
    regional = f"{scope.region}:{scope.account}"
    statements = [
        allow("Buckets", ["s3:*"], [*args.bucket_arns, *objects]),
        allow("Keys", ["kms:Decrypt", "kms:GenerateDataKey"], args.key_arns),
        allow("Describe", ["autoscaling:Describe*", "ec2:Describe*"], ["*"]),
        stack_groups(scope, "Groups", ["autoscaling:*"]),
        stack_reservations(scope, "Reservations", ["ec2:ModifyCapacityReservation", "ec2:CancelCapacityReservation"]),
        allow("Sessions", ["ssm:UpdateInstanceInformation", "ssmmessages:*"], ["*"]),
        allow(
            "Logs",
            ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
            [f"arn:{scope.partition}:logs:{regional}:log-group:*"],
        ),
        allow("StackRoles", ["sts:AssumeRole"], [f"arn:{scope.partition}:iam::{scope.account}:role{scope.iam_path}*"]),
        *_sources(args),
    ]
    if args.secrets:
        names = sorted({name.lstrip("/") for name in args.secrets})
        parameters = [f"arn:{scope.partition}:ssm:{regional}:parameter/{name}" for name in names]
        statements.append(allow("Secrets", ["ssm:GetParameter", "ssm:GetParameters"], parameters))
    if args.image is not None:
        statements.append(allow("RegistryToken", ["ecr:GetAuthorizationToken"], ["*"]))
        statements.append(
            allow("JobImage", ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"], [args.image.arn(scope.partition)])
        )
    return statements


def _sources(args: BoundaryArgs) -> list[Statement]:
    """Return the statement for the buckets of `sources`: all of their keys, which the roles limit to prefixes."""
    buckets = sorted({split_s3_uri(uri)[0] for uri in args.sources})
    arns = [f"arn:{args.scope.partition}:s3:::{bucket}{suffix}" for bucket in buckets for suffix in ("", "/*")]
    return [allow("Sources", ["s3:GetObject", "s3:ListBucket"], arns)] if arns else []
