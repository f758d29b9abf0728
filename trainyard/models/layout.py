"""Keys of all S3 objects. Other modules build keys from these, except bootstrap.py and IAM policies.

Data bucket: `datasets/<name>/`, `exports/` (files that FSx for Lustre exports, its only writes) and
`runs/<run>/{checkpoints,results,metrics,events,heartbeats,attempts,decisions,logs}/`; it outlives the cluster.
During a dry run of a job it also has `dry-run/<id>/{checkpoints,results}/`.
Its object `archived.json` contains which objects of ended runs have the tag by which S3 archives them,
`replaced-nodes.json` the nodes that were replaced in all runs. Its object `uploads/<name>/incomplete` means that the
upload of a dataset has not ended.
Staging bucket: `bundle/`, `job/` (sources, locked requirements, their wheels), `manifest.json`, `run.json` (the current
run), `pending-launch` (the id of the launch that has not created its run), `head/controller.json` (where agents connect
to the controller), and events of the head and builders.
Streams (events, metrics, logs) are numbered chunks `<instance>/<boot>/<source>-<seq>.jsonl`: S3 has no append.
"""

from collections.abc import Iterable
from dataclasses import dataclass

DATASETS = "datasets/"
EXPORTS = "exports/"
MANIFEST = "manifest.json"
CURRENT_RUN = "run.json"
PENDING_LAUNCH = "pending-launch"
HEAD_EVENTS = "head/events/"
CONTROLLER_ENDPOINT = "head/controller.json"
BAKE_EVENTS = "bake/events/"
ARCHIVED = "archived.json"
REPLACED_NODES = "replaced-nodes.json"
# Of the data bucket, where it is a bucket of the user: the tag of the only stack that may write to it.
STACK_OF_BUCKET = "trainyard-stack.txt"
WHEELS = "job/wheels/"
UPLOADS = "uploads/"
COMMIT_MARK = ".metadata"


def dataset_prefix(name: str) -> str:
    """Prefix of a dataset in the data bucket."""
    return f"{DATASETS}{name}/"


def upload_key(name: str) -> str:
    """Key of the object that exists while `trainyard data put` uploads a dataset: until its end it is incomplete."""
    return f"{UPLOADS}{name}/incomplete"


def bundle_key(sha256: str) -> str:
    """Key of a bundle in the staging bucket."""
    return f"bundle/{sha256}.tar"


def job_source_key(sha256: str) -> str:
    """Key of the archive of the user's sources in the staging bucket."""
    return f"job/{sha256}.tar"


def wheel_key(sha256: str, file: str) -> str:
    """Key of a wheel of a job's requirements in the staging bucket."""
    return f"{WHEELS}{sha256}/{file}"


def requirements_lock_key(identity: str) -> str:
    """Key of the lock of requirements in the staging bucket. `identity`: SHA-256 of what it depends on."""
    return f"job/requirements/{identity}.json"


def source_check_key(identity: str) -> str:
    """Key of the result of the check of a job's source in the staging bucket. `identity`: as of a lock."""
    return f"job/checks/{identity}.json"


def chunk_prefix(stream: str, instance: str, boot: str, source: str) -> str:
    """Prefix of the chunks of one writer in a stream such as `runs/<run>/events/`."""
    return f"{stream}{instance}/{boot}/{source}-"


def chunk_key(prefix: str, seq: int) -> str:
    """Key of the chunk with sequence number `seq` of one writer."""
    return f"{prefix}{seq:08d}.jsonl"


def attempt_source(attempt: int, source: str) -> str:
    """Name of a source that belongs to one attempt."""
    return f"{attempt:04d}-{source}"


def health_check_source(number: int, source: str) -> str:
    """Name of a source that belongs to one health check. It differs from the names of the job's ranks."""
    return f"check-{number:04d}-{source}"


def chunk_attempt(key: str) -> int:
    """Number of the attempt to which a chunk of an attempt's source belongs."""
    return int(key.rsplit("/", 1)[-1].split("-")[0])


def complete_checkpoints(keys: Iterable[str], prefix: str) -> list[str]:
    """Sorted names of the checkpoints under `prefix` that are complete: `.metadata` is written last."""
    marks = (key.removeprefix(prefix) for key in keys if key.startswith(prefix))
    return sorted(name.removesuffix(f"/{COMMIT_MARK}") for name in marks if name.endswith(f"/{COMMIT_MARK}"))


@dataclass(frozen=True)
class RunLayout:
    """Keys of one run in the data bucket."""

    run: str

    @property
    def prefix(self) -> str:
        """Prefix of all objects of the run."""
        return f"runs/{self.run}/"

    @property
    def record(self) -> str:
        """Key of the run record."""
        return f"{self.prefix}run.json"

    @property
    def control(self) -> str:
        """Key of the requests of the controller."""
        return f"{self.prefix}control.json"

    @property
    def outcome(self) -> str:
        """Key of the outcome."""
        return f"{self.prefix}outcome.json"

    @property
    def latest_health_check(self) -> str:
        """Result of the latest health check."""
        return f"{self.prefix}health_check.json"

    def health_check(self, number: int) -> str:
        """Result of one health check."""
        return f"{self.health_checks}{number:04d}.json"

    @property
    def health_checks(self) -> str:
        """Prefix of the results of the health checks."""
        return f"{self.prefix}health_checks/"

    def decision(self, attempt: int) -> str:
        """Decision on an attempt that failed."""
        return f"{self.decisions}{attempt:04d}.json"

    @property
    def decisions(self) -> str:
        """Prefix of the decisions on attempts that failed."""
        return f"{self.prefix}decisions/"

    def attempt_start(self, attempt: int) -> str:
        """Start of an attempt."""
        return f"{self.attempt_starts}{attempt:04d}.json"

    @property
    def attempt_starts(self) -> str:
        """Prefix of the starts of the attempts."""
        return f"{self.prefix}attempts/"

    @property
    def checkpoints(self) -> str:
        """Prefix of the checkpoints."""
        return f"{self.prefix}checkpoints/"

    @property
    def requirements(self) -> str:
        """Key of the lock of the job's requirements."""
        return f"{self.prefix}requirements.lock"

    @property
    def results(self) -> str:
        """Prefix of the results."""
        return f"{self.prefix}results/"

    @property
    def metrics(self) -> str:
        """Prefix of the metrics stream."""
        return f"{self.prefix}metrics/"

    @property
    def latest_metrics(self) -> str:
        """Key of the newest line of the metrics stream."""
        return f"{self.prefix}metrics.json"

    @property
    def events(self) -> str:
        """Prefix of the events stream."""
        return f"{self.prefix}events/"

    def heartbeat(self, instance: str) -> str:
        """Key of the last heartbeat of a node that is not connected to the controller."""
        return f"{self.prefix}heartbeats/{instance}.json"

    @property
    def logs(self) -> str:
        """Prefix of the logs stream."""
        return f"{self.prefix}logs/"


@dataclass(frozen=True)
class DryRunLayout(RunLayout):
    """Keys of one dry run of a job in the data bucket. It is no run: the launch deletes its objects."""

    @property
    def prefix(self) -> str:
        """Prefix of all objects of the dry run."""
        return f"dry-run/{self.run}/"


def split_s3_uri(uri: str) -> tuple[str, str]:
    """Split `s3://bucket/key` into bucket and key. Raises ValueError for anything else."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ValueError(f"{uri!r} is not an S3 URI (s3://bucket/key)")
    return bucket, key
