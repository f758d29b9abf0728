"""What lifecycle rules do to objects, by the account's clock: once a day, at midnight UTC.

An object's time is its age rounded up to the next midnight; a noncurrent version's age counts from its successor on.
Source: https://docs.aws.amazon.com/AmazonS3/latest/userguide/intro-lifecycle-rules.html
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from moto.s3.models import FakeDeleteMarker, FakeKey, s3_backends

from rehearsal.aws.clock import CLOCK, Due
from rehearsal.aws.extension import extend
from rehearsal.aws.storage import object_rules

_DAY = 86400.0
# Smaller ones stay where they are unless the configuration says otherwise. Source:
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/lifecycle-transition-general-considerations.html
_LEAST = 128 * 1024
_WARM = frozenset(["STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"])


def install() -> None:
    object_rules.install()
    for kind in (FakeKey, FakeDeleteMarker):
        _by_the_clock(kind)
    last = [CLOCK.now()]

    def midnights() -> Iterator[Due]:
        midnight = _midnight(last[0] + 1)

        def run() -> None:
            last[0] = midnight
            _run(midnight)

        yield midnight, run

    CLOCK.watch(midnights)


def _by_the_clock(kind: Any) -> None:
    make: Callable[..., None] = kind.__init__

    def made(self: Any, *args: Any, **given: Any) -> None:
        make(self, *args, **given)
        self.last_modified = CLOCK.utc()

    extend(kind, __init__=made)


def _run(now: float) -> None:
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
    gone = []
    for number, version in enumerate(older):
        since, newer = versions[number + 1].last_modified, len(older) - 1 - number
        if not _concerns(backend, rule, version):
            continue
        _move(bucket, version, _due_class(rule.noncurrent_version_transitions, since, now, newer))
        days, kept = rule.nve_noncurrent_days, int(rule.newer_kept or 0)
        if days and newer >= kept and _due(since, days) <= now:
            gone.append(version)
    if gone:
        bucket.keys.setlist(name, [version for version in versions if version not in gone])
    if isinstance(current, FakeKey) and _concerns(backend, rule, current):
        _move(bucket, current, _due_class(rule.transitions, current.last_modified, now, 0))
        if rule.expiration_days and _due(current.last_modified, rule.expiration_days) <= now:
            if bucket.is_versioned:
                backend._set_delete_marker(bucket.name, name)
            else:
                bucket.keys.pop(name)


def _concerns(backend: Any, rule: Any, version: Any) -> bool:
    """Whether the rule's filter takes this object in."""
    chosen = rule.filter
    if chosen is None:
        return str(version.name).startswith(rule.prefix or "")
    both = chosen.and_filter
    prefix = (both.prefix if both else chosen.prefix) or ""
    wanted = dict(both.tags) if both else {chosen.tag_key: chosen.tag_value} if chosen.tag_key else {}
    if not str(version.name).startswith(prefix):
        return False
    tags = backend.tagger.get_tag_dict_for_resource(version.arn) if wanted and isinstance(version, FakeKey) else {}
    return all(tags.get(key) == value for key, value in wanted.items())


def _due_class(transitions: Any, since: datetime, now: float, newer: int) -> str | None:
    """The class that the latest transition which is due asks for."""
    due = [
        each
        for each in transitions or []
        if _due(since, each.days) <= now and newer >= int(getattr(each, "newer_versions", None) or 0)
    ]
    return str(max(due, key=lambda each: int(each.days)).storage_class) if due else None


def _move(bucket: Any, version: Any, storage_class: str | None) -> None:
    if storage_class is None or not isinstance(version, FakeKey):
        return
    small = version.size < _LEAST and (bucket.least_moved == object_rules.ALL_128K or storage_class in _WARM)
    if not small:
        version.set_storage_class(storage_class)


def _due(since: datetime, days: Any) -> float:
    return _midnight(since.replace(tzinfo=UTC).timestamp() + int(days) * _DAY)


def _midnight(moment: float) -> float:
    """The midnight at or after it."""
    return -(-moment // _DAY) * _DAY
