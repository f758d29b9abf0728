"""What a run has saved: its checkpoints and results, and how long S3 keeps them readable."""

import time
from collections.abc import Sequence

from rich.filesize import decimal

from trainyard.aws import tags
from trainyard.models.layout import RunLayout
from trainyard.models.run import Outcome, RunRecord
from trainyard.models.saved import SavedFiles, SavedItem, list_checkpoints, list_results
from trainyard.operations.cluster import Cluster
from trainyard.quantity import quantity
from trainyard.times import format_age, format_time

DAY_SECONDS = 86400.0


def list_saved(cluster: Cluster, record: RunRecord, outcome: Outcome | None) -> SavedFiles:
    """Return the checkpoints and results of a run. `outcome`: that of the run, None while it is active."""
    data, layout = cluster.data, RunLayout(record.run)
    checkpoints = list_checkpoints(
        data.name,
        data.objects(layout.checkpoints),
        layout.checkpoints,
        builtin_trainer=record.job.train is not None,
    )
    results = list_results(data.name, data.objects(layout.results), layout.results)
    days = data.days_until_archived(tags.ARCHIVE, tags.OLD) if outcome and (checkpoints or results) else None
    readable_until = outcome.ended_at + days * DAY_SECONDS if outcome and days is not None else None
    return SavedFiles(
        checkpoints=checkpoints,
        results=results,
        readable_until=readable_until,
        locked_until=outcome.results_locked_until if outcome else None,
        lock_error=outcome.results_lock_error if outcome else None,
    )


def format_saved(saved: SavedFiles, maximum: int | None = None) -> list[str]:
    """Return checkpoints and results as lines for people. `maximum`: list only the last items of each, this number."""
    lines = _format_items("checkpoint", saved.checkpoints, maximum) + _format_items("result", saved.results, maximum)
    if saved.readable_until is not None and saved.readable_until > time.time():
        lines.append(
            f"results and newest checkpoint are not archived before {format_time(saved.readable_until)} "
            "(storage.archive_after_days)"
        )
    if saved.locked_until is not None and saved.locked_until > time.time():
        lines.append(f"results are locked until {format_time(saved.locked_until)} (storage.lock_results_days)")
    if saved.lock_error is not None:
        lines.append(f"results are not locked (storage.lock_results_days): {saved.lock_error}")
    return lines


def _format_items(noun: str, items: Sequence[SavedItem], maximum: int | None) -> list[str]:
    if not items:
        return []
    shown = items[-maximum:] if maximum else items
    omitted = f", the last {len(shown)}" if len(shown) < len(items) else ""
    total = decimal(sum(item.size_bytes for item in items))
    width = max(len(item.name) for item in shown)
    lines = [f"{quantity(len(items), noun)} ({total}) in {items[0].parent_uri}{omitted}:"]
    return lines + [f"  {item.name:<{width}}  {describe_item(item)}" for item in shown]


def describe_item(item: SavedItem) -> str:
    """Return size, number of files and age of an item."""
    archived = ", archived: restore it before use" if item.archived else ""
    return f"{describe_size(item)}, {format_age(time.time() - item.modified)}{archived}"


def describe_size(item: SavedItem) -> str:
    """Return size and number of files of an item."""
    return f"{decimal(item.size_bytes)} in {quantity(item.files, 'file')}"
