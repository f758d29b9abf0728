"""Execution of S3 lifecycle rules by the account's clock: once a day, at midnight UTC.

An object's age is rounded up to the next midnight; a noncurrent version's age counts from its successor's creation.
Locked versions do not expire (object_lock.py).
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/intro-lifecycle-rules.html
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from moto.s3.models import FakeDeleteMarker, FakeKey, s3_backends

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.moto_extension import extend
from rehearsal.aws.storage import access_logs, lifecycle_rules, object_lock

_DAY_SECONDS = 86400.0
# Smaller objects are not moved by default. Source:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/lifecycle-transition-general-considerations.html
_MINIMUM_TRANSITION_SIZE = 128 * 1024
_SIZE_LIMITED_CLASSES = frozenset(["STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"])


def install() -> None:
    """Date objects by the account's clock and run the lifecycle rules daily."""
    lifecycle_rules.install()
    object_lock.install()
    access_logs.install()
    for model in (FakeKey, FakeDeleteMarker):
        _use_account_clock(model)
    # moto 5.2.5 calls it for each deleted version, but its delete markers do not have it: they have no content.
    extend(FakeDeleteMarker, dispose=lambda _: None)
    last_run = [CLOCK.now()]

    def due_runs() -> Iterator[Due]:
        midnight = _midnight(last_run[0] + 1)

        def apply_rules() -> None:
            last_run[0] = midnight
            _apply_all(midnight)

        yield midnight, apply_rules

    CLOCK.add_source(due_runs)


def _use_account_clock(model: Any) -> None:
    moto_init: Callable[..., None] = model.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        moto_init(self, *args, **kwargs)
        self.last_modified = CLOCK.utc()

    extend(model, __init__=init)


def _apply_all(now: float) -> None:
    backends: Any = s3_backends
    for _, _, backend in backends.iter_backends():
        for bucket in list(backend.buckets.values()):
            rules = [rule for rule in bucket.rules if rule.status == "Enabled"]
            for name in list(bucket.keys) if rules else []:
                for rule in rules:
                    _apply(backend, bucket, name, rule, now)


def _apply(backend: Any, bucket: Any, name: str, rule: Any, now: float) -> None:
    versions = list(bucket.keys.getlist(name) or [])
    if not versions:
        return
    *older, current = versions
    expired = []
    for number, version in enumerate(older):
        since, newer = versions[number + 1].last_modified, len(older) - 1 - number
        if not _matches(backend, rule, version):
            continue
        _transition(bucket, version, _due_class(rule.noncurrent_version_transitions, since, now, newer))
        days, kept_count = rule.nve_noncurrent_days, int(rule.newer_noncurrent_versions or 0)
        is_due = days and newer >= kept_count and _due_time(since, days) <= now
        if is_due and not (isinstance(version, FakeKey) and version.is_locked(governance_bypass=False)):
            expired.append(version)
    if expired:
        bucket.keys.setlist(name, [version for version in versions if version not in expired])
    if isinstance(current, FakeKey) and _matches(backend, rule, current):
        _transition(bucket, current, _due_class(rule.transitions, current.last_modified, now, 0))
        if rule.expiration_days and _due_time(current.last_modified, rule.expiration_days) <= now:
            if bucket.is_versioned:
                backend._set_delete_marker(bucket.name, name)
            else:
                bucket.keys.pop(name)


def _matches(backend: Any, rule: Any, version: Any) -> bool:
    """Return whether the rule's filter matches the object."""
    rule_filter = rule.filter
    if rule_filter is None:
        return str(version.name).startswith(rule.prefix or "")
    combined = rule_filter.and_filter
    prefix = (combined.prefix if combined else rule_filter.prefix) or ""
    single_tag = {rule_filter.tag_key: rule_filter.tag_value} if rule_filter.tag_key else {}
    required_tags = dict(combined.tags) if combined else single_tag
    if not str(version.name).startswith(prefix):
        return False
    tags = (
        backend.tagger.get_tag_dict_for_resource(version.arn) if required_tags and isinstance(version, FakeKey) else {}
    )
    return all(tags.get(key) == value for key, value in required_tags.items())


def _due_class(transitions: Any, since: datetime, now: float, newer: int) -> str | None:
    """Return the storage class of the latest transition that is due, or None."""
    due = [
        transition
        for transition in transitions or []
        if _due_time(since, transition.days) <= now and newer >= int(getattr(transition, "newer_versions", None) or 0)
    ]
    return str(max(due, key=lambda transition: int(transition.days)).storage_class) if due else None


def _transition(bucket: Any, version: Any, storage_class: str | None) -> None:
    if storage_class is None or not isinstance(version, FakeKey):
        return
    too_small = version.size < _MINIMUM_TRANSITION_SIZE and (
        bucket.transition_minimum_size == lifecycle_rules.ALL_128K or storage_class in _SIZE_LIMITED_CLASSES
    )
    if not too_small:
        version.set_storage_class(storage_class)


def _due_time(since: datetime, days: Any) -> float:
    return _midnight(since.replace(tzinfo=UTC).timestamp() + int(days) * _DAY_SECONDS)


def _midnight(moment: float) -> float:
    """Return the first midnight UTC at or after a Unix time."""
    return -(-moment // _DAY_SECONDS) * _DAY_SECONDS
