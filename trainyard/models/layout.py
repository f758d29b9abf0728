"""Where things lie in S3: the one place that spells keys.

Data bucket: `datasets/<name>/` and `runs/<run>/{checkpoints,results,metrics,events,logs}/`; it outlives the cluster.
`archived/<prefix>` there says that all objects under `<prefix>` bear the tag by which S3 archives them.
Staging bucket: `bundle/`, `job/`, `manifest.json`, `run.json` (the current run), and what head and builders tell.
Streams (events, metrics, logs) are numbered chunks `<instance>/<boot>/<source>-<seq>.jsonl`: S3 has no append.
"""

from collections.abc import Iterable
from dataclasses import dataclass

MANIFEST = "manifest.json"
CURRENT_RUN = "run.json"
HEAD_EVENTS = "head/events/"
BAKE_EVENTS = "bake/events/"
ARCHIVED = "archived/"
COMMIT_MARK = ".metadata"


def dataset_prefix(name: str) -> str:
    return f"datasets/{name}/"


def bundle_key(sha256: str) -> str:
    return f"bundle/{sha256}.tar.gz"


def job_source_key(sha256: str) -> str:
    return f"job/{sha256}.tar.gz"


def archived_key(prefix: str) -> str:
    """The object that says that all under `prefix` is tagged for the archive."""
    return ARCHIVED + prefix.rstrip("/")


def chunk_prefix(stream: str, instance: str, boot: str, source: str) -> str:
    """Prefix of one writer's chunks under a stream such as `runs/<run>/events/`."""
    return f"{stream}{instance}/{boot}/{source}-"


def chunk_key(prefix: str, seq: int) -> str:
    return f"{prefix}{seq:08d}.jsonl"


def attempt_source(attempt: int, source: str) -> str:
    """A writer's source for what belongs to one attempt."""
    return f"{attempt:04d}-{source}"


def check_source(check: int, source: str) -> str:
    """A writer's source for what belongs to one check. It is no rank's: the job's logs are those of its ranks."""
    return f"check-{check:04d}-{source}"


def chunk_attempt(key: str) -> int:
    """The attempt that a chunk of such a source belongs to."""
    return int(key.rsplit("/", 1)[-1].split("-")[0])


def complete_checkpoints(keys: Iterable[str], prefix: str) -> list[str]:
    """Names of the checkpoints under `prefix` that bear the commit mark, in order."""
    marks = (key.removeprefix(prefix) for key in keys if key.startswith(prefix))
    return sorted(name.removesuffix(f"/{COMMIT_MARK}") for name in marks if name.endswith(f"/{COMMIT_MARK}"))


@dataclass(frozen=True)
class RunLayout:
    """Keys of one run in the data bucket."""

    run: str

    @property
    def prefix(self) -> str:
        return f"runs/{self.run}/"

    @property
    def record(self) -> str:
        return f"{self.prefix}run.json"

    @property
    def control(self) -> str:
        return f"{self.prefix}control.json"

    @property
    def outcome(self) -> str:
        return f"{self.prefix}outcome.json"

    @property
    def verification(self) -> str:
        """The last check."""
        return f"{self.prefix}verification.json"

    def check(self, number: int) -> str:
        """Each check."""
        return f"{self.prefix}verification/{number:04d}.json"

    @property
    def checkpoints(self) -> str:
        return f"{self.prefix}checkpoints/"

    @property
    def results(self) -> str:
        return f"{self.prefix}results/"

    @property
    def metrics(self) -> str:
        return f"{self.prefix}metrics/"

    @property
    def events(self) -> str:
        return f"{self.prefix}events/"

    @property
    def logs(self) -> str:
        return f"{self.prefix}logs/"


def split_s3_uri(uri: str) -> tuple[str, str]:
    """Split `s3://bucket/key` into bucket and key. Raises ValueError for anything else."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise ValueError(f"{uri!r} is not an S3 URI (s3://bucket/key)")
    return bucket, key
