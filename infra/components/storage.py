"""The two buckets: data, which outlives the cluster, and staging, which goes with it. Found again by their tags."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.scope import Scope
from trainyard.aws import tags

Rule = aws.s3.BucketLifecycleConfigurationRuleArgs
Default = aws.s3.BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs


@dataclass(frozen=True, kw_only=True)
class StagingArgs:
    scope: Scope


@dataclass(frozen=True, kw_only=True)
class DataArgs:
    """`given`: name of a bucket that is there; then nothing is made, and `arn` and `name` are that one's.

    `retained`: name of the one to adopt.

    `noncurrent_days`, `archive_days` as trainyard.config.settings.storage describes them.
    """

    scope: Scope
    given: str | None
    retained: str | None
    key_arn: pulumi.Input[str]
    noncurrent_days: int
    archive_days: int | None


class DataBucket(pulumi.ComponentResource):
    """Datasets and runs. `destroy` keeps it with all its settings; the next `up` finds it by its tags and adopts it.

    Only the bucket itself is imported. Its settings are put again: each is one idempotent Put, and that also mends a
    bucket whose first `up` died between bucket and settings, where an import of what is not there would fail for ever.
    """

    name: pulumi.Output[str]
    arn: pulumi.Output[str]

    def __init__(self, name: str, args: DataArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:DataBucket", name, None, opts)
        if args.given is not None:
            self.name = pulumi.Output.from_input(args.given)
            self.arn = pulumi.Output.from_input(f"arn:{args.scope.partition}:s3:::{args.given}")
            self.register_outputs({"name": self.name})
            return
        keep = pulumi.ResourceOptions(parent=self, retain_on_delete=True)
        bucket = aws.s3.Bucket(
            "trainyard-data",
            tags=args.scope.tags(tags.DATA_BUCKET),
            # An imported bucket has no name of the engine's making: without the exception it would be named anew, and
            # the engine refuses to replace what it has just imported.
            opts=pulumi.ResourceOptions.merge(
                keep, pulumi.ResourceOptions(import_=args.retained, ignore_changes=["bucket"])
            ),
        )
        rules = [_abort_uploads(), _expire_noncurrent(args.noncurrent_days)]
        if args.archive_days is not None:
            rules.append(_archive_old(args.archive_days))
        _settle("data", bucket, rules, key_arn=args.key_arn, versioned=True, opts=keep)
        self.name = bucket.bucket
        self.arn = bucket.arn
        self.register_outputs({"name": self.name})


class StagingBucket(pulumi.ComponentResource):
    """Bundles, job sources and the manifest. Emptied and deleted by `destroy`."""

    name: pulumi.Output[str]
    arn: pulumi.Output[str]

    def __init__(self, name: str, args: StagingArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:StagingBucket", name, None, opts)
        own = pulumi.ResourceOptions(parent=self)
        bucket = aws.s3.Bucket(
            "trainyard-staging", force_destroy=True, tags=args.scope.tags(tags.STAGING_BUCKET), opts=own
        )
        rules = [_abort_uploads(), *map(_expire_archives, ("bundle", "job"))]
        # Under S3's own key: what nodes boot from needs no right beside the bucket's, and holds no secret.
        _settle("staging", bucket, rules, key_arn=None, versioned=False, opts=own)
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


def _expire_noncurrent(days: int) -> Rule:
    """What is deleted or overwritten can be restored for a while, then stops being billed."""
    return Rule(
        id="expire-noncurrent",
        status="Enabled",
        filter=_all(),
        noncurrent_version_expiration=aws.s3.BucketLifecycleConfigurationRuleNoncurrentVersionExpirationArgs(
            noncurrent_days=days
        ),
    )


def _archive_old(days: int) -> Rule:
    """Old checkpoints and results are kept at a twentieth of the price, and take a restore of hours to read.

    A lifecycle rule can't tell the newest of something: what is old, `trainyard` marks by a tag.
    """
    tag = aws.s3.BucketLifecycleConfigurationRuleFilterTagArgs(key=tags.ARCHIVE, value=tags.OLD)
    return Rule(
        id="archive-old",
        status="Enabled",
        filter=aws.s3.BucketLifecycleConfigurationRuleFilterArgs(tag=tag),
        transitions=[aws.s3.BucketLifecycleConfigurationRuleTransitionArgs(days=days, storage_class="DEEP_ARCHIVE")],
    )


def _expire_archives(prefix: str) -> Rule:
    """S3 can't tell an old archive from the current one, which nodes boot from: so a year, at some kilobytes each."""
    return Rule(
        id=f"expire-{prefix}",
        status="Enabled",
        filter=aws.s3.BucketLifecycleConfigurationRuleFilterArgs(prefix=f"{prefix}/"),
        expiration=aws.s3.BucketLifecycleConfigurationRuleExpirationArgs(days=365),
    )


def _settle(
    name: str,
    bucket: aws.s3.Bucket,
    rules: Sequence[Rule],
    key_arn: pulumi.Input[str] | None,
    versioned: bool,
    opts: pulumi.ResourceOptions,
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
        rules=[
            aws.s3.BucketServerSideEncryptionConfigurationRuleArgs(
                apply_server_side_encryption_by_default=Default(
                    sse_algorithm="AES256" if key_arn is None else "aws:kms", kms_master_key_id=key_arn
                ),
                bucket_key_enabled=True,  # one call of KMS for many objects
            )
        ],
        opts=after(last),
    )
    if versioned:
        last = aws.s3.BucketVersioning(
            name, bucket=bucket.bucket, versioning_configuration={"status": "Enabled"}, opts=after(last)
        )
    last = aws.s3.BucketLifecycleConfiguration(
        name,
        bucket=bucket.bucket,
        rules=list(rules),
        # By S3's own default a checkpoint's small files would stay behind when it is archived.
        transition_default_minimum_object_size="varies_by_storage_class",
        opts=after(last),
    )
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
