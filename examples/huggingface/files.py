"""Files of a job in S3 or in folders: the text to train on, checkpoints, and results."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import boto3

COMMIT_MARK = "complete"  # uploaded last: a checkpoint without it is ignored
# Folder of this run on this node, the same for its ranks and attempts.
CACHE = Path(os.environ.get("TRAINYARD_CACHE", tempfile.gettempdir())) / os.environ.get("TRAINYARD_RUN", "local")


def list_files(uri: str) -> list[str]:
    """Return the names of the files below `uri`, relative to it."""
    if "://" not in uri:
        return sorted(str(path.relative_to(uri)) for path in Path(uri).rglob("*") if path.is_file())
    bucket, prefix = _split(uri)
    pages = boto3.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [item["Key"].removeprefix(prefix) for page in pages for item in page.get("Contents", ())]


def download(uri: str, names: list[str], folder: Path) -> None:
    """Download files below `uri` to `folder`, except those that it contains."""
    for name in names:
        target = folder / name
        if target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f"{target.name}.partial")
        if "://" in uri:
            bucket, prefix = _split(uri)
            boto3.client("s3").download_file(bucket, prefix + name, str(partial))
        else:
            shutil.copyfile(Path(uri) / name, partial)
        partial.rename(target)


def upload(folder: Path, uri: str) -> None:
    """Upload the files of `folder` below `uri`, then a commit mark."""
    (folder / COMMIT_MARK).touch()
    names = sorted((str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()), key=_last)
    for name in names:
        if "://" in uri:
            bucket, prefix = _split(uri)
            boto3.client("s3").upload_file(str(folder / name), bucket, prefix + name)
        else:
            target = Path(uri) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, target)


def download_newest_checkpoint() -> Path | None:
    """Download the newest complete checkpoint of this run, or of the run to resume; None if there is none.

    Call it on one rank of a node first: the other ranks use the files that it has downloaded.
    """
    for variable in ("CHECKPOINT_URI", "RESUME_URI"):
        uri = os.environ.get(variable)
        names = list_files(uri) if uri else []
        marks = [name for name in names if name.endswith(f"/{COMMIT_MARK}")]
        if uri and marks:
            newest = max(marks, key=lambda name: int(name.split("/")[0].split("-")[1]))
            checkpoint = newest.rpartition("/")[0]
            folder = CACHE / "restored"
            download(uri, [name for name in names if name.startswith(f"{checkpoint}/")], folder)
            return folder / checkpoint
    return None


def _last(name: str) -> tuple[bool, str]:
    return name == COMMIT_MARK, name


def _split(uri: str) -> tuple[str, str]:
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return bucket, f"{prefix.rstrip('/')}/"


def text_of(uri: str) -> bytes:
    """Return the content of all text files below `uri`. Raises SystemExit if it has none.

    Call it on one rank of a node first, as `download_newest_checkpoint`.
    """
    names = [name for name in list_files(uri) if name.endswith(".txt")]
    if not names:
        raise SystemExit(f"DATA_URI={uri}: contains no .txt file")
    download(uri, names, CACHE / "data")
    return b"".join((CACHE / "data" / name).read_bytes() for name in names)


def environment(name: str, default: Any = None) -> str:
    """Return an environment variable of the job. Raises SystemExit if it is not set and has no default."""
    value = os.environ.get(name, default)
    if value is None:
        raise SystemExit(f"{name} is not set: run this script as a job, or set the variable to a folder")
    return str(value)
