"""The job's dataset is there before nodes are paid for."""

from trainyard.models.dataset import INDEX
from trainyard.models.layout import split_s3_uri
from trainyard.operations import builtin_corpus as corpus
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.progress import Display
from trainyard.operations.resume import require_checkpoint


def ensure(cluster: Cluster, show: Display) -> None:
    """Raises LaunchError where it is not there and may not be filled, or where the run to resume left none to read."""
    job = cluster.manifest.job
    bucket, prefix = split_s3_uri(job.data_uri)
    data = cluster.data
    assert bucket == data.name
    name = prefix.removesuffix("/").rsplit("/", 1)[-1]
    if data.find(prefix + INDEX) is not None:
        show.line("dataset", f"{job.data_uri} is there")
    elif job.builtin_corpus:
        corpus.prepare(data, name, lambda text: show.detail("dataset", text))
        show.line("dataset", f"{job.data_uri} filled with the built-in corpus")
    elif job.train is not None:
        raise LaunchError(
            f"{job.data_uri} has no dataset ({INDEX}): upload one there, or set job.builtin_corpus: true to fill "
            "it with the built-in corpus"
        )
    else:
        show.line("dataset", f"{job.data_uri} is the job's own matter")
    if job.resume is not None:
        require_checkpoint(data, job.resume)
