"""Check that the job's dataset exists, or upload the built-in corpus, before nodes are paid for."""

from trainyard.models.dataset import INDEX
from trainyard.models.layout import split_s3_uri
from trainyard.operations.builtin_corpus import upload_corpus
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.progress import Display
from trainyard.operations.resume import require_readable_checkpoint


def ensure_dataset(cluster: Cluster, display: Display) -> None:
    """Ensure that the job's data can be read.

    Raises LaunchError when the dataset is missing and may not be created, or when the checkpoint to resume from is
    missing or archived.
    """
    job = cluster.manifest.job
    bucket, prefix = split_s3_uri(job.data_uri)
    data = cluster.data
    assert bucket == data.name
    name = prefix.removesuffix("/").rsplit("/", 1)[-1]
    if data.find(prefix + INDEX) is not None:
        display.line("dataset", f"{job.data_uri} exists")
    elif job.builtin_corpus:
        upload_corpus(data, name, lambda text: display.detail("dataset", text))
        display.line("dataset", f"uploaded the built-in corpus to {job.data_uri}")
    elif job.train is not None:
        raise LaunchError(
            f"{job.data_uri} has no dataset ({INDEX}): upload one to this URI, or set job.builtin_corpus: true to "
            "upload the built-in corpus"
        )
    else:
        display.line("dataset", f"{job.data_uri} is not checked: the job reads its data itself")
    if job.resume is not None:
        require_readable_checkpoint(data, job.resume)
