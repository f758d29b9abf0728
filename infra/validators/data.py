"""Validators of the data and the model that the job reads. Every preview runs them before any resource is created."""

from collections.abc import Callable, Iterator, Sequence

import pulumi

from infra.lookups.account import AccountFacts, region_of
from infra.lookups.data import LISTED, SourceFacts
from trainyard.aws.s3 import ARCHIVE_CLASSES
from trainyard.config.prices import prices
from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import InputError, Problem
from trainyard.quantity import quantity

SourceValidator = Callable[[StackSettings, AccountFacts, SourceFacts], Iterator[Problem]]


def _source_problem(source: SourceFacts, reason: str, fix: str, code: str) -> Problem:
    return invalid_setting(source.key, source.value, reason, fix, code)


def source_has_objects(settings: StackSettings, facts: AccountFacts, source: SourceFacts) -> Iterator[Problem]:
    """The prefix has objects, and those that the built-in trainer needs."""
    name = source.value.rpartition(":")[2]
    upload = f"trainyard data put FOLDER {name} -s {pulumi.get_stack()}"
    is_own = source.key in settings.job.datasets
    if source.uri is None:
        reason = "the stack has no data bucket yet, so this dataset does not exist"
        yield _source_problem(source, reason, f"Upload it, which creates the bucket: {upload}", "dataset_missing")
    elif source.incomplete:
        reason = f"its upload to {source.uri} has not ended"
        yield _source_problem(source, reason, f"Run the upload again, it continues: {upload}", "dataset_incomplete")
    elif not source.objects:
        fix = f"Upload it: {upload}" if is_own else "Correct the prefix, or upload the objects"
        yield _source_problem(source, f"{source.uri} has no objects", fix, "dataset_missing")
    elif not source.has_required:
        preparation = "config.json" if source.key == "job.model" else "python -m trainer.prepare creates it"
        reason = f"{source.uri} has no {source.required}, which the built-in trainer reads"
        fix = f"Name the prefix that has it ({preparation})"
        yield _source_problem(source, reason, fix, "dataset_index_missing")


def source_readable(settings: StackSettings, facts: AccountFacts, source: SourceFacts) -> Iterator[Problem]:
    """The nodes may use the KMS key of the objects."""
    is_other = source.key in settings.job.s3_sources and source.uri is not None
    if is_other and source.kms_key is not None and source.kms_key not in settings.job.kms_keys:
        reason = f"{source.value} is encrypted with {source.kms_key}, which nodes may not use"
        fix = "Add this key"
        yield invalid_setting("job.kms_keys", list(settings.job.kms_keys), reason, fix, "kms_key_missing")


def source_reachable(settings: StackSettings, facts: AccountFacts, source: SourceFacts) -> Iterator[Problem]:
    """Nodes reach a bucket in another region.

    A gateway endpoint serves the buckets of its region only (VPC guide, "Gateway endpoints for Amazon S3"), so others
    are reached through the NAT gateway.
    """
    if source.region == facts.region:
        return
    has_internet = facts.subnet.has_egress if facts.subnet else settings.network.nat_gateway
    if not has_internet:
        reason = f"the bucket is in {source.region}, and nodes without internet access reach S3 in {facts.region} only"
        fix = f"Copy the objects to a bucket in {facts.region}, or give the nodes a NAT gateway"
        yield _source_problem(source, reason, fix, "bucket_not_reachable")


VALIDATORS: tuple[SourceValidator, ...] = (source_has_objects, source_readable, source_reachable)
# For an existing cluster their problems are warnings: the update may be unrelated, and each launch checks them again.
NEW_CLUSTER_ONLY: tuple[SourceValidator, ...] = (source_has_objects,)


def kms_keys_in_regions(settings: StackSettings, sources: Sequence[SourceFacts]) -> Iterator[Problem]:
    """A KMS key encrypts objects of its region only."""
    regions = {source.region for source in sources if source.key in settings.job.s3_sources}
    for key in settings.job.kms_keys:
        if regions and region_of(key) not in regions:
            reason = f"{key} is in {region_of(key)}, and the buckets are in {', '.join(sorted(regions))}"
            fix = "Name the key of the bucket"
            yield invalid_setting("job.kms_keys", list(settings.job.kms_keys), reason, fix, "kms_key_region")


def cross_region_cost(facts: AccountFacts, source: SourceFacts) -> str | None:
    """Return what it costs to read a bucket of another region; None for one in the stack's region."""
    if source.region == facts.region:
        return None
    listed = prices()
    price = listed.cross_region_read_gb
    parts = f"transfer {listed.inter_region_gb:g}, NAT gateway {listed.nat_gateway_gb:g}; prices of {listed.region}"
    text = (
        f"{source.key} = {source.value} is in {source.region}, and the stack in {facts.region}: each read costs "
        f"{price:g} USD per GB ({parts})"
    )
    count = quantity(source.objects, "object") if source.objects < LISTED else f"{LISTED} objects or more"
    if source.bytes is None:
        return f"{text}. It has {count}; the launch displays their size"
    total = source.bytes / 1e9
    return f"{text}. One read of its {total:,.2f} GB ({count}) costs {total * price:.2f} USD"


def archived_warning(source: SourceFacts) -> str | None:
    """Return that the first object is archived; None if it is not.

    A restored object keeps its storage class, and the preview cannot look up its restore: the launch checks it.
    """
    if source.storage_class not in ARCHIVE_CLASSES:
        return None
    return (
        f"{source.key} = {source.value}: objects are archived (storage class {source.storage_class}), and jobs read "
        "them only after a restore. The launch refuses objects that are not restored"
    )


def validate_sources(
    settings: StackSettings,
    facts: AccountFacts,
    sources: Sequence[SourceFacts],
    missing: Sequence[Problem],
    is_up: bool,
) -> None:
    """Raise InputError with every problem. If the cluster exists (`is_up`), missing objects are warnings."""
    problems = [*missing, *kms_keys_in_regions(settings, sources)]
    for source in sources:
        for validator in VALIDATORS:
            for problem in validator(settings, facts, source):
                if is_up and validator in NEW_CLUSTER_ONLY:
                    pulumi.log.warn(str(problem))
                else:
                    problems.append(problem)
        for warning in (archived_warning(source), cross_region_cost(facts, source)):
            if warning is not None:
                pulumi.log.warn(warning)
    if problems:
        raise InputError(problems)
