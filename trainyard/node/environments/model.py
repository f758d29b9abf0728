"""Download the job's model once: `model.py URI FOLDER REGION`.

FOLDER has the objects below URI afterwards. A marker in the folder lists them with their ETags: a later attempt or run
downloads only what has changed. On a shared file system one node downloads, and the others wait for its lock. It runs
in a process separate from the agent, so that the agent is not blocked.
"""

import fcntl
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # this file runs as a script, in the folder of the user's sources

import boto3  # noqa: E402
from botocore.exceptions import BotoCoreError, ClientError  # noqa: E402

from trainyard.models.layout import split_s3_uri  # noqa: E402
from trainyard.node.environments.source import EXIT_FAILED, MODEL_ERROR_PREFIX  # noqa: E402

MARKER = ".trainyard-model.json"
_PARALLEL_FILES = 8
_LOCK_TIMEOUT_SECONDS = 7200.0
_LINE_SECONDS = 10.0
Objects = Mapping[str, tuple[str, int]]  # name relative to the prefix -> ETag, bytes


class ModelError(Exception):
    """The model cannot be downloaded."""


def fetch_model(s3: Any, uri: str, folder: Path) -> bool:
    """Download the objects below an S3 prefix that the folder does not have; return whether any was missing.

    Raises ModelError if there are none, if the disk is too small, or if another node holds the lock for two hours.
    """
    bucket, prefix = split_s3_uri(uri)
    objects = _list_objects(s3, bucket, prefix)
    if not objects:
        raise ModelError("it has no objects")
    if _marked(folder) == objects:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        existing = _marked(folder)  # another node may have downloaded it meanwhile
        if existing == objects:
            return False
        (folder / MARKER).unlink(missing_ok=True)
        missing = {name: entry for name, entry in objects.items() if existing.get(name) != entry}
        _require_space(folder, sum(size for _, size in missing.values()))
        _download(s3, bucket, prefix, missing, folder)
        for name in existing.keys() - objects.keys():
            (folder / name).unlink(missing_ok=True)
        _write_marker(folder, objects)
    return True


def _list_objects(s3: Any, bucket: str, prefix: str) -> dict[str, tuple[str, int]]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    items = (item for page in pages for item in page.get("Contents", []) if not item["Key"].endswith("/"))
    return {item["Key"].removeprefix(prefix): (item["ETag"], item["Size"]) for item in items}


def _marked(folder: Path) -> dict[str, tuple[str, int]]:
    """Return the objects that the folder has; none without a marker."""
    try:
        content = json.loads((folder / MARKER).read_text())
    except FileNotFoundError:
        return {}
    return {name: (entry[0], entry[1]) for name, entry in content.items()}


def _write_marker(folder: Path, objects: Objects) -> None:
    partial = folder / f"{MARKER}.{os.getpid()}"
    partial.write_text(json.dumps(objects))
    partial.rename(folder / MARKER)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder, which FSx for Lustre shares between nodes (mount option flock)."""
    deadline, line_at = time.monotonic() + _LOCK_TIMEOUT_SECONDS, 0.0
    with (folder.parent / f"{folder.name}.lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ModelError(f"another node has downloaded to {folder} for two hours") from None
                if time.monotonic() >= line_at:
                    line_at = time.monotonic() + _LINE_SECONDS
                    print(f"model: waits for the download of another node to {folder}", flush=True)
                time.sleep(0.5)
        yield


def _require_space(folder: Path, required: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < required:
        raise ModelError(
            f"{folder} has {free / 1e9:.1f} GB of free disk space, and the model needs {required / 1e9:.1f}"
        )


def _download(s3: Any, bucket: str, prefix: str, objects: Objects, folder: Path) -> None:
    total, done, line_at = sum(size for _, size in objects.values()), 0, 0.0

    def download(name: str) -> int:
        target = folder / name
        partial = target.with_name(f".{target.name}.partial")
        target.parent.mkdir(parents=True, exist_ok=True)
        s3.download_file(bucket, prefix + name, str(partial))
        partial.rename(target)
        return objects[name][1]

    with ThreadPoolExecutor(_PARALLEL_FILES) as executor:
        for size in executor.map(download, objects):
            done += size
            if time.monotonic() >= line_at or done == total:
                line_at = time.monotonic() + _LINE_SECONDS
                print(f"model: {done / 1e9:.2f} of {total / 1e9:.2f} GB in {folder}", flush=True)


def main() -> int:
    """Download the model; EXIT_FAILED if that is not possible."""
    uri, folder, region = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    try:
        if not fetch_model(boto3.client("s3", region_name=region), uri, folder):
            print(f"model: {folder} has {uri}", flush=True)
    except (ModelError, OSError, BotoCoreError, ClientError) as error:
        sys.stderr.write(f"{MODEL_ERROR_PREFIX} {uri}: {error}\n")
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
