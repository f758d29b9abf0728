"""The dry run of a custom job (job.dry_run): one process on the operator's machine, with the variables of a job."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from trainyard.aws.s3 import Bucket
from trainyard.config.field_types import HUB_SCHEME
from trainyard.models.layout import DryRunLayout
from trainyard.models.manifest import Manifest
from trainyard.models.run_variables import run_variables


def find_node_variable(manifest: Manifest) -> str | None:
    """Return a variable of the job whose value exists on nodes only; None: its dry run has all of them."""
    if manifest.fsx is not None and not Path(manifest.fsx.mount_point).is_mount():
        return "DATA_URI" if manifest.job.data == "fsx" else "FSX_PATH"
    is_downloaded = manifest.job.model_uri is not None and not manifest.job.reads_hub
    return "MODEL_PATH" if is_downloaded else None


@contextmanager
def dry_run_variables(manifest: Manifest, folder: Path) -> Iterator[dict[str, str]]:
    """Yield the variables of a job of one process; afterwards delete its checkpoints and results.

    `folder`: existing, for metrics and caches. Each dry run has its own prefix of the data bucket: a script that saves
    and resumes does not find the checkpoints of another dry run.
    """
    job, layout = manifest.job, DryRunLayout(uuid4().hex)
    variables = run_variables(
        manifest=manifest,
        job=job,
        layout=layout,
        attempt=1,
        node="dry-run",
        metrics=folder,
        request=folder / "checkpoint-request",
        cache=folder,
        model=(job.model_uri or "").removeprefix(HUB_SCHEME) or None,
    )
    if job.reads_hub:  # the cache of this machine, with its access token
        variables["HF_HOME"] = os.environ.get("HF_HOME", str(Path.home() / ".cache/huggingface"))
    scopes = ("", "LOCAL_", "GROUP_", "ROLE_")
    torchrun = {f"{scope}WORLD_SIZE": "1" for scope in scopes} | {f"{scope}RANK": "0" for scope in scopes}
    try:
        yield {**torchrun, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", **variables}
    finally:
        bucket = Bucket(manifest.data_bucket, manifest.region)
        for key in list(bucket.keys(layout.prefix)):
            bucket.delete(key)
