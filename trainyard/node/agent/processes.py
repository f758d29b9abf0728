"""One torchrun on this node: its interpreter, transfer of its logs to S3, failures of its ranks."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

from trainyard.aws.s3 import Bucket
from trainyard.models.events import RankFailure
from trainyard.models.layout import RunLayout, chunk_prefix
from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord
from trainyard.node.agent.rank_failures import parse_failures, rank_log_folders
from trainyard.node.environments.node import JOB_VENV
from trainyard.node.identity import BASE, Node
from trainyard.node.job_user import JobUser, create_job_folder, read_job_file
from trainyard.node.streams import ChunkWriter, FileTail


def job_python(manifest: Manifest, image: str | None) -> Path:
    """Python interpreter of the job: that of the container image, if the job has one.

    The link to the environment is resolved: running processes keep their environment when it is replaced.
    """
    if image is not None:
        return Path("python")
    return (Path(manifest.node.venv) if manifest.node.venv else JOB_VENV.resolve()) / "bin/python"


def scratch_folder() -> Path:
    """Folder for caches of the job: on the instance store if the node has one."""
    disks = BASE / "scratch"
    return disks if disks.is_dir() else BASE


def cache_folder() -> Path:
    """Folder of the job's caches, which it may write."""
    return scratch_folder() / "cache"


def home_folder() -> Path:
    """Home directory of the job."""
    return scratch_folder() / "home"


def home_variables(user: JobUser | None) -> dict[str, str]:
    """Variables that name the user of the job and a home directory: a container image does not know the user."""
    if user is None:
        return {}
    return {"HOME": str(home_folder()), "USER": user.name, "LOGNAME": user.name}


class Torchrun:
    """The logs of one torchrun.

    `log`: file with the output of torchrun itself. `source`: creates the name of a log stream in S3 from the name of a
    log. `rank`: name of a rank in these streams, followed by its number. `first_rank`: number of the first rank of this
    node. `user`: of the job.
    """

    def __init__(
        self,
        node: Node,
        manifest: Manifest,
        run: RunRecord,
        folder: Path,
        log: Path,
        source: Callable[[str], str],
        rank: str,
        first_rank: int = 0,
        user: JobUser | None = None,
    ) -> None:
        self._folder, self._logs, self._rank, self._first_rank = folder, folder / "logs", rank, first_rank
        self._user, self._processes = user, run.processes_per_node
        create_job_folder(self._logs, user)
        self._layout, self._data = RunLayout(run.run), Bucket(manifest.data_bucket, node.region)
        self._stack = ExitStack()
        self._node, self._source = node, source
        self._tails: dict[str, FileTail] = {}
        self._log = log
        self.follow_file("torchrun", self._log)

    def follow_file(self, name: str, file: Path, stream: str | None = None, latest: str | None = None) -> None:
        """Copy new lines of `file` to S3 from now on.

        `stream`: prefix of the stream, the logs by default. `latest`: key of an object for the newest line.
        """
        if name not in self._tails:
            node = self._node
            prefix = chunk_prefix(stream or self._layout.logs, node.instance, node.boot, self._source(name))
            self._tails[name] = FileTail(file, self._stack.enter_context(ChunkWriter(self._data, prefix, latest)))

    def forward_logs(self, final: bool = False) -> None:
        """Copy new lines of all logs to S3. `final`: also a last line without a line end."""
        for local_rank, folder in rank_log_folders(self._logs, self._processes).items():
            for name in ("stdout", "stderr"):
                self.follow_file(f"{self._rank}{self._first_rank + local_rank}-{name}", folder / f"{name}.log")
        for tail in self._tails.values():
            tail.forward(final)

    def output(self) -> str:
        """End of the output of torchrun itself."""
        try:
            return read_job_file(self._log).decode(errors="replace")
        except OSError:  # it does not exist yet
            return ""

    def failures(self) -> tuple[RankFailure, ...]:
        """Failures of this node's ranks, from torchrun's report."""
        return parse_failures(self.output(), self._logs, time.time(), self._processes)

    def close(self, final: bool = True) -> None:
        """Copy the remaining lines of all logs to S3. `final`: torchrun has ended; else its logs continue."""
        self.forward_logs(final)
        self._stack.close()


def child_processes(parent: int, proc: Path = Path("/proc")) -> list[int]:
    """Process ids of the direct children. Field 4 of /proc/PID/stat is the parent, proc_pid_stat(5)."""
    return [process for process, fields in process_fields(proc) if int(fields[1]) == parent]


def process_fields(proc: Path = Path("/proc")) -> Iterator[tuple[int, list[str]]]:
    """Yield the id of each process and its fields after the name in /proc/PID/stat, from field 3 on, proc_pid_stat(5).

    The name may have brackets and any bytes: a process can change it.
    """
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # the process has exited
                yield int(entry.name), (entry / "stat").read_bytes().rpartition(b")")[2].decode().split()
