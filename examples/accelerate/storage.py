"""Where a job reads and writes: prefixes in S3, or folders. The same file lies in each folder.

DATA_URI, CHECKPOINT_URI, RESULTS_URI and RESUME_URI name the places, CHECKPOINT_REQUEST a file that asks for a
checkpoint at the next step (README.md, "A stack").
"""

import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import torch.distributed as dist

MARK = "complete"  # written last: a checkpoint without it does not count
REQUEST = Path(os.environ.get("CHECKPOINT_REQUEST", "checkpoint-request"))
# This attempt's own folder on this node, which all its ranks name alike: torchrun tells them the id.
SCRATCH = Path(os.environ.get("TRAINYARD_CACHE", tempfile.gettempdir())) / os.environ["TORCHELASTIC_RUN_ID"]
CHECKPOINT, RESTORED = SCRATCH / "checkpoint", SCRATCH / "restored"  # on its way there, and back


def keys(uri: str) -> list[str]:
    """Names of the files there, relative to it."""
    if "://" not in uri:
        return sorted(str(path.relative_to(uri)) for path in Path(uri).rglob("*") if path.is_file())
    bucket, prefix = _split(uri)
    pages = _s3().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [item["Key"].removeprefix(prefix) for page in pages for item in page.get("Contents", ())]


def fetch(uri: str, key: str, target: Path) -> Path:
    """Bring a file to `target`, where it appears when it is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    if "://" in uri:
        bucket, prefix = _split(uri)
        _s3().download_file(bucket, prefix + key, str(partial))
    else:
        shutil.copyfile(Path(uri) / key, partial)
    return partial.rename(target)


def write(uri: str, key: str, content: bytes) -> None:
    if "://" in uri:
        bucket, prefix = _split(uri)
        _s3().put_object(Bucket=bucket, Key=prefix + key, Body=content)
        return
    target = Path(uri) / key
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.rename(target)


def restore() -> Path | None:
    """The newest complete checkpoint of this run, else of the run to resume, brought to each node. By all ranks."""
    uris = [os.environ[name] for name in ("CHECKPOINT_URI", "RESUME_URI") if os.environ.get(name)]
    found: list[str | None] = [None]
    if dist.get_rank() == 0:
        complete = ((uri, [key for key in keys(uri) if key.endswith(f"/{MARK}")]) for uri in uris)
        found = [next((f"{uri.rstrip('/')}/{Path(max(marks)).parent}/" for uri, marks in complete if marks), None)]
    dist.broadcast_object_list(found, src=0)  # what one rank sees, all take
    if found[0] is None:
        return None
    if _local_rank() == 0:
        for key in keys(found[0]):
            fetch(found[0], key, RESTORED / key)
    dist.barrier()
    return RESTORED


def publish(step: int) -> None:
    """Send what the ranks have saved in CHECKPOINT, and say when it is complete. By all ranks."""
    uri, name = os.environ["CHECKPOINT_URI"], f"step-{step:08d}"
    dist.barrier()
    if _local_rank() == 0:
        for path in (path for path in CHECKPOINT.rglob("*") if path.is_file()):
            write(uri, f"{name}/{path.relative_to(CHECKPOINT)}", path.read_bytes())
    dist.barrier()
    if dist.get_rank() == 0:
        write(uri, f"{name}/{MARK}", b"")
    dist.barrier()
    if _local_rank() == 0:
        shutil.rmtree(CHECKPOINT, ignore_errors=True)  # not every node has something to save
        REQUEST.unlink(missing_ok=True)  # the asker's sign that it is saved
    dist.barrier()


def tell(results: dict[str, Any]) -> None:
    """Leave the run's results."""
    write(os.environ["RESULTS_URI"], "results.json", json.dumps(results, indent=2).encode())


def _local_rank() -> int:
    return int(os.environ["LOCAL_RANK"])


def _split(uri: str) -> tuple[str, str]:
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return bucket, f"{prefix.rstrip('/')}/"


@cache
def _s3() -> Any:
    return boto3.client("s3")
