"""Check that the job's data and model exist, or upload the built-in corpus, before nodes are paid for."""

from itertools import islice

from botocore.exceptions import ClientError

from trainyard.aws.s3 import Bucket, StoredObject
from trainyard.config.field_types import is_s3_uri
from trainyard.config.prices import prices
from trainyard.models.dataset import INDEX
from trainyard.models.job import required_object
from trainyard.models.layout import DATASETS, split_s3_uri, upload_key
from trainyard.models.manifest import Job
from trainyard.operations.builtin_corpus import upload_corpus
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.progress import Display
from trainyard.operations.restore import archived_problem
from trainyard.operations.resume import require_readable_checkpoint
from trainyard.quantity import quantity

_MEASURED = 100_000  # objects that are listed: 100 requests
_CHECKED = 100  # archived objects whose restore is looked up, one request each


def ensure_dataset(cluster: Cluster, display: Display) -> None:
    """Ensure that the job's data and model can be read.

    Raises LaunchError when one of them is missing, empty or incomplete and may not be created, or when the checkpoint
    to resume from is missing or archived.
    """
    job = cluster.manifest.job
    if job.data_uri is None:
        display.line("dataset", "the job reads no data")
    else:
        _ensure_data(cluster, display, job, job.data_uri)
    if is_s3_uri(job.model_uri or ""):
        _require_objects(cluster, display, str(job.model_uri), "job.model")
    if job.resume is not None:
        require_readable_checkpoint(cluster.data, job.resume)


def _ensure_data(cluster: Cluster, display: Display, job: Job, uri: str) -> None:
    if job.builtin_corpus and cluster.data.find(split_s3_uri(uri)[1] + INDEX) is None:
        upload_corpus(cluster.data, split_s3_uri(uri)[1], lambda text: display.detail("dataset", text))
        display.line("dataset", f"uploaded the built-in corpus to {uri}")
    else:
        key = "job.data" if job.reads_own_bucket else "job.dataset"
        _require_objects(cluster, display, uri, key)


def _require_objects(cluster: Cluster, display: Display, uri: str, key: str) -> None:
    """Raise LaunchError unless the prefix has objects that can be read, and the required one. `key`: its setting."""
    required = required_object(cluster.manifest.job, key)
    name, prefix = split_s3_uri(uri)
    bucket = Bucket(name, cluster.region)
    dataset = prefix.removeprefix(DATASETS).rstrip("/") if name == cluster.manifest.data_bucket else None
    upload = f"upload it (trainyard data put FOLDER {dataset} -s {cluster.stack})"
    fix = "correct the prefix" if dataset is None else upload
    try:
        if dataset is not None and bucket.find(upload_key(dataset)) is not None:
            raise LaunchError(f"the upload of {uri} ({key}) has not ended: run it again, {upload}")
        listed = islice(bucket.objects(prefix), _MEASURED)
        objects = [stored for stored in listed if not stored.key.endswith("/")]
        if not objects:
            raise LaunchError(f"{uri} ({key}) has no objects: {fix}")
        archived = islice((stored for stored in objects if stored.archived), _CHECKED)
        if problem := archived_problem(bucket, archived, prefix, next_command="launch"):
            reason, restore = problem
            raise LaunchError(f"{uri} ({key}) {reason}. {restore}")
        if required is not None and bucket.find(prefix + required) is None:
            raise LaunchError(f"{uri} has no {required}, which the built-in trainer reads: {fix}")
        text = "exists"
        if dataset is None and (region := bucket.region()) != cluster.region:
            text = f"is in {region}: {_describe_cost(objects)}"
    except ClientError as error:
        raise LaunchError(f"{uri} cannot be read: {error}") from error
    display.line("dataset", f"{uri} {text}")


def _describe_cost(objects: list[StoredObject]) -> str:
    total = sum(stored.size for stored in objects) / 1e9
    usd = total * prices().cross_region_read_gb
    more = "more than " if len(objects) == _MEASURED else ""
    size = f"{more}{total:,.2f} GB in {quantity(len(objects), 'object')}"
    return f"{size}, {usd:.2f} USD for each read from this region"
