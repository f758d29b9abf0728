"""Checkpoints and results of a run in the data bucket: each folder, or single file, directly below their prefix."""

import re
from collections.abc import Iterable

from pydantic import Field

from trainyard.aws.s3 import StoredObject
from trainyard.base import StrictModel
from trainyard.models.layout import COMMIT_MARK


class SavedItem(StrictModel):
    """A checkpoint or a result of a run."""

    name: str = Field(description="Name of the folder or file below the prefix of checkpoints or results.")
    uri: str = Field(description="S3 URI; that of a folder ends with a slash.")
    size_bytes: int = Field(ge=0, description="Size of all its objects, bytes.")
    files: int = Field(gt=0, description="Number of objects.")
    modified: float = Field(description="Unix time of its last write, seconds.")
    archived: bool = Field(description="Whether an object is in an archive class of S3, where jobs cannot read it.")

    @property
    def parent_uri(self) -> str:
        """S3 prefix of the checkpoints or results of the run."""
        return self.uri.rstrip("/").removesuffix(self.name)


class SavedFiles(StrictModel):
    """What a run has saved."""

    checkpoints: tuple[SavedItem, ...] = Field(
        description="Checkpoints, the newest last; those of the built-in trainer only if they are complete."
    )
    results: tuple[SavedItem, ...] = Field(description="Results, in the order of their names.")
    readable_until: float | None = Field(
        description="Unix time before which S3 does not archive the results and the newest checkpoint of a run that "
        "has ended, seconds; null: the run is active, or the bucket's lifecycle rules archive nothing."
    )
    locked_until: float | None = Field(
        None, description="Unix time until which S3 Object Lock keeps the results, seconds; null: they are not locked."
    )
    lock_error: str | None = Field(None, description="Why the results could not be locked; null: no error.")


def list_results(bucket: str, objects: Iterable[StoredObject], prefix: str) -> tuple[SavedItem, ...]:
    """Return the results under `prefix`, in the order of their names."""
    return tuple(item for item, _ in sorted(_items(bucket, objects, prefix), key=lambda pair: _natural(pair[0].name)))


def list_checkpoints(
    bucket: str, objects: Iterable[StoredObject], prefix: str, *, builtin_trainer: bool
) -> tuple[SavedItem, ...]:
    """Return the checkpoints under `prefix`, the newest last.

    Those of the built-in trainer are listed when they have the commit mark, in the order of their steps. The format of
    a custom job is not known: all are listed, by the time of their last write, those with a commit mark last.
    """
    items = _items(bucket, objects, prefix)
    if builtin_trainer:
        return tuple(sorted((item for item, complete in items if complete), key=lambda item: _natural(item.name)))
    items.sort(key=lambda pair: (pair[1], pair[0].modified, _natural(pair[0].name)))
    return tuple(item for item, _ in items)


def _items(bucket: str, objects: Iterable[StoredObject], prefix: str) -> list[tuple[SavedItem, bool]]:
    """Return the folders and files directly below `prefix`, each with whether it has a commit mark."""
    grouped: dict[str, list[StoredObject]] = {}
    for stored in objects:
        if not stored.key.endswith("/"):  # an empty folder of a file system that is mounted from S3
            folder, slash, _ = stored.key.removeprefix(prefix).partition("/")
            grouped.setdefault(f"{folder}{slash}", []).append(stored)
    return [
        (_item(f"s3://{bucket}/{prefix}{name}", name, members), _is_complete(members))
        for name, members in grouped.items()
    ]


def _item(uri: str, name: str, members: list[StoredObject]) -> SavedItem:
    return SavedItem(
        name=name.rstrip("/"),
        uri=uri,
        size_bytes=sum(stored.size for stored in members),
        files=len(members),
        modified=max(stored.modified for stored in members),
        archived=any(stored.archived for stored in members),
    )


def _is_complete(members: list[StoredObject]) -> bool:
    return any(stored.key.endswith(f"/{COMMIT_MARK}") for stored in members)


def _natural(name: str) -> list[str | int]:
    """Sort key by which `step-9` precedes `step-10`."""
    return [int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", name))]
