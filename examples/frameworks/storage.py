"""Input and output of a job: prefixes in S3, or folders.

DATA_URI, CHECKPOINT_URI, RESULTS_URI and RESUME_URI are the locations; CHECKPOINT_REQUEST is a file that requests a
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

COMMIT_MARK = "complete"  # written last: a checkpoint without it is ignored
CHECKPOINT_REQUEST = Path(os.environ.get("CHECKPOINT_REQUEST", "checkpoint-request"))
# Folder of this attempt on this node, the same for all of its ranks: torchrun sets the id.
SCRATCH = Path(os.environ.get("TRAINYARD_CACHE", tempfile.gettempdir())) / os.environ["TORCHELASTIC_RUN_ID"]
CHECKPOINT, RESTORED = SCRATCH / "checkpoint", SCRATCH / "restored"  # to be uploaded, and downloaded


def list_keys(uri: str) -> list[str]:
    """Return the keys of the files below `uri`, relative to it."""
    if "://" not in uri:
        return sorted(str(path.relative_to(uri)) for path in Path(uri).rglob("*") if path.is_file())
    bucket, prefix = _split(uri)
    pages = _s3().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [item["Key"].removeprefix(prefix) for page in pages for item in page.get("Contents", ())]


def download(uri: str, key: str, target: Path) -> Path:
    """Download a file to `target`, atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    if "://" in uri:
        bucket, prefix = _split(uri)
        _s3().download_file(bucket, prefix + key, str(partial))
    else:
        shutil.copyfile(Path(uri) / key, partial)
    return partial.rename(target)


def upload(uri: str, key: str, content: bytes) -> None:
    """Write a file below `uri`, atomically."""
    if "://" in uri:
        bucket, prefix = _split(uri)
        _s3().put_object(Bucket=bucket, Key=prefix + key, Body=content)
        return
    target = Path(uri) / key
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.rename(target)


def download_checkpoint() -> Path | None:
    """Download the newest complete checkpoint of this run, or of the run to resume, to each node.

    Call it on all ranks. Returns None if there is no checkpoint.
    """
    uris = [os.environ[name] for name in ("CHECKPOINT_URI", "RESUME_URI") if os.environ.get(name)]
    newest: list[str | None] = [None]
    if dist.get_rank() == 0:
        complete = ((uri, [key for key in list_keys(uri) if key.endswith(f"/{COMMIT_MARK}")]) for uri in uris)
        newest = [next((f"{uri.rstrip('/')}/{Path(max(marks)).parent}/" for uri, marks in complete if marks), None)]
    dist.broadcast_object_list(newest, src=0)  # all ranks use the choice of rank 0
    if newest[0] is None:
        return None
    if _local_rank() == 0:
        for key in list_keys(newest[0]):
            download(newest[0], key, RESTORED / key)
    dist.barrier()
    return RESTORED


def upload_checkpoint(step: int) -> None:
    """Upload the files that the ranks have saved in CHECKPOINT, then the commit mark. Call it on all ranks."""
    uri, name = os.environ["CHECKPOINT_URI"], f"step-{step:08d}"
    dist.barrier()
    if _local_rank() == 0:
        for path in (path for path in CHECKPOINT.rglob("*") if path.is_file()):
            upload(uri, f"{name}/{path.relative_to(CHECKPOINT)}", path.read_bytes())
    dist.barrier()
    if dist.get_rank() == 0:
        upload(uri, f"{name}/{COMMIT_MARK}", b"")
    dist.barrier()
    if _local_rank() == 0:
        shutil.rmtree(CHECKPOINT, ignore_errors=True)  # a node may have no files to save
        CHECKPOINT_REQUEST.unlink(missing_ok=True)  # confirms the requested checkpoint
    dist.barrier()


def write_results(results: dict[str, Any]) -> None:
    """Write the run's results to RESULTS_URI."""
    upload(os.environ["RESULTS_URI"], "results.json", json.dumps(results, indent=2).encode())


def _local_rank() -> int:
    return int(os.environ["LOCAL_RANK"])


def _split(uri: str) -> tuple[str, str]:
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return bucket, f"{prefix.rstrip('/')}/"


@cache
def _s3() -> Any:
    return boto3.client("s3")
