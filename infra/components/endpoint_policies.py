"""Policies of VPC endpoints: nodes reach this account, the stack's buckets, those of its file, and some of AWS.

Without them, a process on a node could send data through the endpoints with credentials of another account.
https://docs.aws.amazon.com/vpc/latest/privatelink/vpc-endpoints-access.html
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pulumi

from infra.components.statements import Statement, allow, policy_document
from infra.scope import Scope
from trainyard.aws.ecr import EcrImage
from trainyard.config.settings import StackSettings
from trainyard.models.layout import split_s3_uri

_ANYONE = {"Principal": "*"}  # as the policy of a gateway endpoint must have it; conditions limit it
_ECR_ACTIONS = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")


@dataclass(frozen=True, kw_only=True)
class EndpointPolicies:
    """What nodes reach through the endpoints.

    `stack_buckets`: ARNs of the data and the staging bucket. `sources`: S3 prefixes of other buckets, read with the
    roles of the nodes. `public_buckets`: names of buckets that nodes read without these roles.
    """

    scope: Scope
    stack_buckets: Sequence[pulumi.Input[str]]
    sources: Sequence[str]
    public_buckets: Sequence[str]
    image: EcrImage | None

    def document(self, service: str) -> pulumi.Output[str]:
        """Return the policy of the endpoint for a service, such as `s3` or `ecr.api`."""
        if service == "s3":
            statements = self._s3()
        elif service.startswith("ecr."):
            statements = self._ecr()
        else:
            statements = [self._own_account("OwnAccount", ["*"], ["*"])]
        return policy_document(*statements)

    def _s3(self) -> list[Statement]:
        objects = [pulumi.Output.concat(arn, "/*") for arn in self.stack_buckets]
        statements = [self._own_account("StackBuckets", ["s3:*"], [*self.stack_buckets, *objects])]
        if self.sources:
            prefixes = [split_s3_uri(uri) for uri in sorted(set(self.sources))]
            buckets = sorted({bucket for bucket, _ in prefixes})
            arns = [
                *(self._bucket(bucket) for bucket in buckets),
                *(f"{self._bucket(bucket)}/{prefix.rstrip('/')}*" for bucket, prefix in prefixes),
            ]
            statements.append(self._own_account("Sources", ["s3:GetObject", "s3:ListBucket"], arns))
        # Their requests are unsigned, or signed by AWS.
        public = [f"{self._bucket(bucket)}/*" for bucket in self.public_buckets]
        statements.append(allow("PublicBuckets", ["s3:GetObject"], public, **_ANYONE))
        return statements

    def _ecr(self) -> list[Statement]:
        assert self.image is not None
        return [
            self._own_account("RegistryToken", ["ecr:GetAuthorizationToken"], ["*"]),
            self._own_account("JobImage", _ECR_ACTIONS, [self.image.arn(self.scope.partition)]),
        ]

    def _bucket(self, name: str) -> str:
        return f"arn:{self.scope.partition}:s3:::{name}"

    def _own_account(self, sid: str, actions: Sequence[str], resources: list[Any]) -> Statement:
        condition = {"StringEquals": {"aws:PrincipalAccount": self.scope.account}}
        return allow(sid, actions, resources, **_ANYONE, Condition=condition)


def endpoint_policies(
    scope: Scope, settings: StackSettings, stack_buckets: Sequence[pulumi.Input[str]]
) -> EndpointPolicies:
    """Return the policies of a stack's endpoints."""
    return EndpointPolicies(
        scope=scope,
        stack_buckets=stack_buckets,
        sources=settings.other_bucket_prefixes,
        public_buckets=[*_aws_buckets(scope, settings), *settings.network.readable_buckets],
        image=settings.ecr_image,
    )


def _aws_buckets(scope: Scope, settings: StackSettings) -> list[str]:
    """Return the buckets of AWS and Canonical from which nodes of this stack download.

    SSM agent: https://docs.aws.amazon.com/systems-manager/latest/userguide/ssm-agent-minimum-s3-permissions.html.
    ECR: https://docs.aws.amazon.com/AmazonECR/latest/userguide/vpc-endpoints.html. FSx: the role lustre. That the EFA
    installer and the Ubuntu archive of a region are in buckets of these names is an assumption.
    """
    buckets = [f"amazon-ssm-{scope.region}", f"{scope.region}.ec2.archive.ubuntu.com"]
    if settings.efa:
        buckets += ["aws-efa-installer", "efa-installer.amazonaws.com"]
    if settings.fsx:
        buckets += ["fsx-lustre-client-repo", "fsx-lustre-client-repo-public-keys"]
    if settings.ecr_image:
        buckets.append(f"prod-{settings.ecr_image.region}-starport-layer-bucket")
    return buckets
