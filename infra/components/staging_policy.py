"""The policy of the staging bucket: nodes write their events only, even if their role gets further permissions.

Nodes run what the bucket contains as root: the manifest names the bundle with its SHA-256. A node that could replace
them would control all nodes of the stack. The policies of the roles allow none of this. This policy denies it too, so
that a policy that is attached to a role later does not open it.

The alternative is a signature of the manifest with a KMS key, which the bootstrap verifies. It would detect a manifest
that another principal of the account wrote. It would not cover run.json, job archives and locks, an older manifest
with a valid signature, or the deletion of any of them; and each boot would depend on one more service.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.bucket_policy import require_tls
from infra.components.statements import Statement, policy_document
from infra.components.storage import StagingBucket
from trainyard.models.layout import BAKE_EVENTS

HEAD_PREFIX = "head/"
# Amazon S3 checks a bucket policy in addition to the policies of the role. Actions of nodes on objects that they do not
# write; HeadBucket and the lists require ListBucket.
_READS = ["s3:GetObject", "s3:ListBucket"]


@dataclass(frozen=True, kw_only=True)
class StagingPolicyArgs:
    """Arguments of StagingPolicy: the bucket, and the ARNs of the roles of head, workers and job."""

    bucket: StagingBucket
    head_role_arn: pulumi.Input[str]
    worker_role_arn: pulumi.Input[str]
    job_role_arn: pulumi.Input[str]


class StagingPolicy(pulumi.ComponentResource):
    """Policy of the staging bucket. It is created after the roles, which it names."""

    def __init__(self, name: str, args: StagingPolicyArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:StagingPolicy", name, None, opts)
        bucket = args.bucket
        statements = [
            require_tls(bucket.arn),
            _deny_writes("HeadWritesItsEvents", bucket.arn, args.head_role_arn, [f"{HEAD_PREFIX}*"]),
            _deny_writes("WorkersWriteBakeEvents", bucket.arn, args.worker_role_arn, [f"{BAKE_EVENTS}*"]),
            _deny_writes("JobWritesNothing", bucket.arn, args.job_role_arn, []),
        ]
        aws.s3.BucketPolicy(
            name,
            bucket=bucket.name,
            policy=policy_document(*statements),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[bucket],  # S3 refuses parallel changes of a bucket's settings
                # In the state of earlier versions, the bucket's component is the parent.
                aliases=[pulumi.Alias(name="staging", parent=bucket)],
            ),
        )
        self.register_outputs({})


def _deny_writes(
    sid: str, bucket_arn: pulumi.Input[str], role_arn: pulumi.Input[str], keys: Sequence[str]
) -> Statement:
    """Deny a role all but reading, except on these keys: also changes of the bucket's settings and of this policy.

    aws:PrincipalArn is the ARN of the role of a session. Source:
    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_condition-keys.html#condition-keys-principalarn
    """
    # A policy cannot contain an empty list.
    resources = {"NotResource": [pulumi.Output.concat(bucket_arn, "/", key) for key in keys]}
    everything = {"Resource": [bucket_arn, pulumi.Output.concat(bucket_arn, "/*")]}
    return {
        "Sid": sid,
        "Effect": "Deny",
        "Principal": "*",
        "NotAction": _READS,
        **(resources if keys else everything),
        "Condition": {"ArnEquals": {"aws:PrincipalArn": role_arn}},
    }
