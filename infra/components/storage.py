"""The data bucket, which `destroy` retains, and the staging bucket, which it deletes. Both are found by their tags."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from infra.components.bucket_policy import limit_fsx_exports, require_tls
from infra.components.statements import policy_document
from infra.scope import Scope
from trainyard.aws import tags
from trainyard.aws.s3 import ABORT_UPLOADS_DAYS
from trainyard.models.layout import STACK_OF_BUCKET, WHEELS

Rule = aws.s3.BucketLifecycleConfigurationRuleArgs
Default = aws.s3.BucketServerSideEncryptionConfigurationRuleApplyServerSideEncryptionByDefaultArgs

# Archives, locks and results of checks have up to some megabytes each.
_ARCHIVE_DAYS = 365
# Wheels may have gigabytes. The launch reuses them for up to 90 days (operations.job_source.MAX_AGE_SECONDS), and the
# nodes of its run install them later.
_WHEEL_DAYS = 180
# Earlier manifests and run records are evidence of a wrong write, and can be restored.
_STAGING_VERSION_DAYS = 30


@dataclass(frozen=True, kw_only=True)
class StagingArgs:
    """Arguments of StagingBucket."""

    scope: Scope


@dataclass(frozen=True, kw_only=True)
class DataArgs:
    """Arguments of DataBucket.

    `existing` is the name of a bucket to use unchanged, `retained` the name of a retained bucket to import. `kms_key`
    (None: the stack's own key), `noncurrent_version_days` and `archive_after_days`: see
    trainyard.config.settings.storage. `lock_results`: enable Object Lock; `access_log_bucket`: of the access logs.
    """

    scope: Scope
    existing: str | None
    retained: str | None
    kms_key: str | None
    key_arn: pulumi.Input[str]
    noncurrent_version_days: int
    archive_after_days: int | None
    lock_results: bool = False
    access_log_bucket: str | None = None


class DataBucket(pulumi.ComponentResource):
    """The bucket of datasets and runs. `destroy` retains it with its configuration; the next `up` imports it.

    Only the bucket is imported. Its configuration is created again, one idempotent Put each: importing configuration
    that does not exist would fail after an `up` that stopped between bucket and configuration.
    """

    name: pulumi.Output[str]
    arn: pulumi.Output[str]

    def __init__(self, name: str, args: DataArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:DataBucket", name, None, opts)
        if args.existing is not None:
            self.name = pulumi.Output.from_input(args.existing)
            self.arn = pulumi.Output.from_input(f"arn:{args.scope.partition}:s3:::{args.existing}")
            aws.s3.BucketObjectv2(
                f"{name}-stack",
                bucket=args.existing,
                key=STACK_OF_BUCKET,
                content=args.scope.stack_tag,
                content_type="text/plain",
                tags=args.scope.own_tags("data-bucket-stack"),
                # Its runs stay after `destroy`, so the bucket remains that of this stack.
                opts=pulumi.ResourceOptions(parent=self, retain_on_delete=True),
            )
            self.register_outputs({"name": self.name})
            return
        retain = pulumi.ResourceOptions(parent=self, retain_on_delete=True)
        bucket = aws.s3.Bucket(
            f"trainyard-{name}",
            tags={**args.scope.tags(tags.DATA_BUCKET), tags.KMS_KEY: args.kms_key or tags.STACK_KEY},
            # The engine did not generate the name of an imported bucket: without ignore_changes it would replace the
            # bucket, and it refuses to replace a resource that it has just imported.
            opts=pulumi.ResourceOptions.merge(
                retain, pulumi.ResourceOptions(import_=args.retained, ignore_changes=["bucket"])
            ),
        )
        rules = [_abort_uploads(), _expire_noncurrent(args.noncurrent_version_days)]
        if args.archive_after_days is not None:
            rules.append(_archive_marked(args.archive_after_days))
        statements = [limit_fsx_exports(bucket.arn, args.scope)]
        last: pulumi.Resource = _configure(name, bucket, rules, key_arn=args.key_arn, opts=retain)
        policy = policy_document(require_tls(bucket.arn), *statements)
        last = aws.s3.BucketPolicy(name, bucket=bucket.bucket, policy=policy, opts=_after(last, retain))
        _protect(name, bucket, args, last, retain)
        self.name = bucket.bucket
        self.arn = bucket.arn
        self.register_outputs({"name": self.name})


class StagingBucket(pulumi.ComponentResource):
    """The bucket of bundles, job sources and the manifest. `destroy` empties and deletes it.

    Its policy (StagingPolicy) names the roles of nodes. Overwritten manifests and run records remain as versions.
    """

    name: pulumi.Output[str]
    arn: pulumi.Output[str]

    def __init__(self, name: str, args: StagingArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:infra:StagingBucket", name, None, opts)
        parent = pulumi.ResourceOptions(parent=self)
        bucket = aws.s3.Bucket(
            f"trainyard-{name}", force_destroy=True, tags=args.scope.tags(tags.STAGING_BUCKET), opts=parent
        )
        rules = [_abort_uploads(), _expire_noncurrent(_STAGING_VERSION_DAYS)]
        rules += [_expire("bundle/", _ARCHIVE_DAYS), _expire("job/", _ARCHIVE_DAYS)]
        rules.append(_expire(WHEELS, _WHEEL_DAYS))  # of two rules for an object, S3 applies the shorter one
        # Encrypted with the S3 managed key: its objects contain no secrets, and nodes need no KMS permission to boot.
        _configure(name, bucket, rules, key_arn=None, opts=parent)
        self.name = bucket.bucket
        self.arn = bucket.arn
        self.register_outputs({"name": self.name})


def _all_objects() -> aws.s3.BucketLifecycleConfigurationRuleFilterArgs:
    return aws.s3.BucketLifecycleConfigurationRuleFilterArgs(prefix="")


def _abort_uploads() -> Rule:
    """Multipart uploads that a terminated node did not complete are billed and not listed."""
    return Rule(
        id="abort-uploads",
        status="Enabled",
        filter=_all_objects(),
        abort_incomplete_multipart_upload=aws.s3.BucketLifecycleConfigurationRuleAbortIncompleteMultipartUploadArgs(
            days_after_initiation=ABORT_UPLOADS_DAYS
        ),
    )


def _expire_noncurrent(days: int) -> Rule:
    """Deleted or overwritten objects can be restored until they expire."""
    return Rule(
        id="expire-noncurrent",
        status="Enabled",
        filter=_all_objects(),
        noncurrent_version_expiration=aws.s3.BucketLifecycleConfigurationRuleNoncurrentVersionExpirationArgs(
            noncurrent_days=days
        ),
    )


def _archive_marked(days: int) -> Rule:
    """Move old checkpoints and results to Deep Archive: a twentieth of the price, and hours to restore.

    A lifecycle rule cannot select the newest object, so `trainyard` tags old objects.
    """
    tag = aws.s3.BucketLifecycleConfigurationRuleFilterTagArgs(key=tags.ARCHIVE, value=tags.OLD)
    return Rule(
        id="archive-old",
        status="Enabled",
        filter=aws.s3.BucketLifecycleConfigurationRuleFilterArgs(tag=tag),
        transitions=[aws.s3.BucketLifecycleConfigurationRuleTransitionArgs(days=days, storage_class="DEEP_ARCHIVE")],
    )


def _expire(prefix: str, days: int) -> Rule:
    """Expire the objects of a prefix, such as `job/wheels/`: S3 cannot recognize those that are in use."""
    return Rule(
        id=f"expire-{prefix.rstrip('/').replace('/', '-')}",
        status="Enabled",
        filter=aws.s3.BucketLifecycleConfigurationRuleFilterArgs(prefix=prefix),
        expiration=aws.s3.BucketLifecycleConfigurationRuleExpirationArgs(days=days),
    )


def _encrypt(key_arn: pulumi.Input[str] | None) -> aws.s3.BucketServerSideEncryptionConfigurationRuleArgs:
    """Encrypt with the KMS key; None: with the S3 managed key."""
    return aws.s3.BucketServerSideEncryptionConfigurationRuleArgs(
        apply_server_side_encryption_by_default=Default(
            sse_algorithm="AES256" if key_arn is None else "aws:kms", kms_master_key_id=key_arn
        ),
        bucket_key_enabled=True,  # one KMS call for many objects
    )


def _configure(
    name: str,
    bucket: aws.s3.Bucket,
    rules: Sequence[Rule],
    key_arn: pulumi.Input[str] | None,
    opts: pulumi.ResourceOptions,
) -> pulumi.Resource:
    """Configure a bucket: no public access, encryption, versioning, lifecycle; the last setting.

    S3 refuses parallel calls.
    """

    previous: pulumi.Resource = aws.s3.BucketPublicAccessBlock(
        name,
        bucket=bucket.bucket,
        block_public_acls=True,
        block_public_policy=True,
        ignore_public_acls=True,
        restrict_public_buckets=True,
        opts=opts,
    )
    previous = aws.s3.BucketServerSideEncryptionConfiguration(
        name,
        bucket=bucket.bucket,
        rules=[_encrypt(key_arn)],
        opts=_after(previous, opts),
    )
    previous = aws.s3.BucketVersioning(
        name, bucket=bucket.bucket, versioning_configuration={"status": "Enabled"}, opts=_after(previous, opts)
    )
    return aws.s3.BucketLifecycleConfiguration(
        name,
        bucket=bucket.bucket,
        rules=list(rules),
        # By default S3 would not archive the small files of a checkpoint.
        transition_default_minimum_object_size="varies_by_storage_class",
        opts=_after(previous, opts),
    )


def _protect(
    name: str, bucket: aws.s3.Bucket, args: DataArgs, previous: pulumi.Resource, opts: pulumi.ResourceOptions
) -> None:
    """Enable Object Lock and access logs, as the settings require.

    Object Lock has no default retention, which would also lock checkpoints and records: the controller locks results.
    An attribute of the bucket would replace an existing bucket; this resource enables Object Lock for it. Source:
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/object-lock-configure.html
    """
    if args.lock_results:
        previous = aws.s3.BucketObjectLockConfiguration(
            name, bucket=bucket.bucket, object_lock_enabled="Enabled", opts=_after(previous, opts)
        )
    if args.access_log_bucket is not None:
        aws.s3.BucketLogging(
            name,
            bucket=bucket.bucket,
            target_bucket=args.access_log_bucket,
            target_prefix=f"access-logs/{args.scope.stack_tag}/",
            opts=_after(previous, opts),
        )


def _after(previous: pulumi.Resource, opts: pulumi.ResourceOptions) -> pulumi.ResourceOptions:
    return pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=[previous]))
