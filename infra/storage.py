"""The two buckets: data, which outlives the cluster, and staging, which goes with it. Found again by their tags."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from contract import tags
from contract.base import InputError, Problem
from infra.scope import Scope

Rule = aws.s3.BucketLifecycleConfigurationRuleArgs


@dataclass(frozen=True, kw_only=True)
class BucketArgs:
    scope: Scope


class DataBucket(pulumi.ComponentResource):
    """Datasets and runs. `destroy` keeps it with all its settings; the next `up` finds it by its tags and adopts it.

    Only the bucket itself is imported. Its settings are put again: each is one idempotent Put, and that also mends a
    bucket whose first `up` died between bucket and settings, where an import of what is not there would fail for ever.
    """

    name: pulumi.Output[str]
    arn: pulumi.Output[str]

    def __init__(self, name: str, args: BucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:DataBucket", name, None, opts)
        keep = pulumi.ResourceOptions(parent=self, retain_on_delete=True)
        bucket = aws.s3.Bucket(
            "trainyard-data",
            tags=args.scope.tags(tags.DATA_BUCKET),
            # An imported bucket has no name of the engine's making: without the exception it would be named anew, and
            # the engine refuses to replace what it has just imported.
            opts=pulumi.ResourceOptions.merge(
                keep, pulumi.ResourceOptions(import_=_retained(args.scope), ignore_changes=["bucket"])
            ),
        )
        _settle("data", bucket, [_abort_uploads(), _expire_noncurrent()], versioned=True, opts=keep)
        self.name = bucket.bucket
        self.arn = bucket.arn
        self.register_outputs({"name": self.name})


class StagingBucket(pulumi.ComponentResource):
    """Bundles, job sources and the manifest. Emptied and deleted by `destroy`."""

    name: pulumi.Output[str]
    arn: pulumi.Output[str]

    def __init__(self, name: str, args: BucketArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:StagingBucket", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        bucket = aws.s3.Bucket(
            "trainyard-staging", force_destroy=True, tags=args.scope.tags(tags.STAGING_BUCKET), opts=own
        )
        _settle(
            "staging", bucket, [_abort_uploads(), *map(_expire_archives, ("bundle", "job"))], versioned=False, opts=own
        )
        self.name = bucket.bucket
        self.arn = bucket.arn
        self.register_outputs({"name": self.name})


def _all() -> aws.s3.BucketLifecycleConfigurationRuleFilterArgs:
    return aws.s3.BucketLifecycleConfigurationRuleFilterArgs(prefix="")


def _abort_uploads() -> Rule:
    """An upload that a killed node left unfinished is billed and invisible."""
    return Rule(
        id="abort-uploads",
        status="Enabled",
        filter=_all(),
        abort_incomplete_multipart_upload=aws.s3.BucketLifecycleConfigurationRuleAbortIncompleteMultipartUploadArgs(
            days_after_initiation=7
        ),
    )


def _expire_noncurrent() -> Rule:
    """What is deleted or overwritten stays readable for a month, then stops being billed."""
    return Rule(
        id="expire-noncurrent",
        status="Enabled",
        filter=_all(),
        noncurrent_version_expiration=aws.s3.BucketLifecycleConfigurationRuleNoncurrentVersionExpirationArgs(
            noncurrent_days=30
        ),
    )


def _expire_archives(prefix: str) -> Rule:
    """S3 can't tell an old archive from the current one, which nodes boot from: so a year, at some kilobytes each."""
    return Rule(
        id=f"expire-{prefix}",
        status="Enabled",
        filter=aws.s3.BucketLifecycleConfigurationRuleFilterArgs(prefix=f"{prefix}/"),
        expiration=aws.s3.BucketLifecycleConfigurationRuleExpirationArgs(days=365),
    )


def _retained(scope: Scope) -> str | None:
    """Name of this stack's data bucket, when an earlier `up` made one."""
    found = aws.resourcegroupstaggingapi.get_resources(
        resource_type_filters=["s3:bucket"],
        tag_filters=[
            {"key": tags.STACK, "values": [scope.stack]},
            {"key": tags.ROLE, "values": [tags.DATA_BUCKET]},
        ],
    )
    names = sorted(entry.resource_arn.rpartition(":")[2] for entry in found.resource_tag_mapping_lists)
    if len(names) > 1:
        raise InputError(
            [
                Problem(
                    key=f"{tags.STACK}={scope.stack}, {tags.ROLE}={tags.DATA_BUCKET}",
                    value=names,
                    why="more than one bucket bears the tags of this stack's data bucket",
                    fix=f"Remove the tags from all but one of them in {scope.region}",
                )
            ]
        )
    return names[0] if names else None


def _settle(
    name: str, bucket: aws.s3.Bucket, rules: Sequence[Rule], versioned: bool, opts: pulumi.ResourceOptions
) -> None:
    """Encryption, no public access, TLS only, lifecycle and versioning. One after the other: S3 refuses two at once."""

    def after(*earlier: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=list(earlier)))

    last: pulumi.Resource = aws.s3.BucketPublicAccessBlock(
        name,
        bucket=bucket.bucket,
        block_public_acls=True,
        block_public_policy=True,
        ignore_public_acls=True,
        restrict_public_buckets=True,
        opts=opts,
    )
    last = aws.s3.BucketServerSideEncryptionConfiguration(
        name,
        bucket=bucket.bucket,
        rules=[{"apply_server_side_encryption_by_default": {"sse_algorithm": "AES256"}, "bucket_key_enabled": True}],
        opts=after(last),
    )
    if versioned:
        last = aws.s3.BucketVersioning(
            name, bucket=bucket.bucket, versioning_configuration={"status": "Enabled"}, opts=after(last)
        )
    last = aws.s3.BucketLifecycleConfiguration(name, bucket=bucket.bucket, rules=list(rules), opts=after(last))
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Sid": "OnlyTls",
                "Effect": "Deny",
                "Principal": "*",
                "Action": "s3:*",
                "Resource": [bucket.arn, pulumi.Output.concat(bucket.arn, "/*")],
                "Condition": {"Bool": {"aws:SecureTransport": "false"}},
            }
        ],
    }
    aws.s3.BucketPolicy(name, bucket=bucket.bucket, policy=pulumi.Output.json_dumps(policy), opts=after(last))
