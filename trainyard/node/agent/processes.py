"""One torchrun on this node: start, transfer of its logs to S3, failures of its ranks, stop."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from trainyard.aws.s3 import Bucket
from trainyard.models.events import RankFailure
from trainyard.models.layout import RunLayout, chunk_prefix
from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord
from trainyard.node.agent.rank_failures import parse_failures, rank_log_folders
from trainyard.node.environments.node import JOB_VENV
from trainyard.node.identity import BASE, CONTAINER_NAME, CONTAINER_WRAPPER, Node
from trainyard.node.streams import ChunkWriter, FileTail

# torchrun itself waits 30 s between SIGTERM and SIGKILL of its workers.
STOP_SECONDS = 40.0


def job_python(manifest: Manifest, image: str | None) -> Path:
    """Python interpreter of the job: that of the container image, if the job has one.

    The link to the environment is resolved: running processes keep their environment when it is replaced.
    """
    if image is not None:
        return Path("python")
    return (Path(manifest.node.venv) if manifest.node.venv else JOB_VENV.resolve()) / "bin/python"


class Torchrun:
    """One torchrun process and its logs.

    `source`: creates the name of a log stream in S3 from the name of a log. `rank`: name of a rank in these streams,
    followed by its number. `first_rank`: number of the first rank of this node.
    """

    _process: "subprocess.Popen[bytes]"
    _image: str | None = None

    def __init__(
        self,
        node: Node,
        manifest: Manifest,
        run: RunRecord,
        folder: Path,
        source: Callable[[str], str],
        rank: str,
        first_rank: int = 0,
    ) -> None:
        self._folder, self._logs, self._rank, self._first_rank = folder, folder / "logs", rank, first_rank
        self._logs.mkdir(parents=True, exist_ok=True)
        self._layout, self._data = RunLayout(run.run), Bucket(manifest.data_bucket, node.region)
        self._stack = ExitStack()
        self._node, self._source = node, source
        self._tails: dict[str, FileTail] = {}
        self.follow_file("torchrun", folder / "torchrun.log")

    def follow_file(self, name: str, file: Path, stream: str | None = None, latest: str | None = None) -> None:
        """Copy new lines of `file` to S3 from now on.

        `stream`: prefix of the stream, the logs by default. `latest`: key of an object for the newest line.
        """
        if name not in self._tails:
            node = self._node
            prefix = chunk_prefix(stream or self._layout.logs, node.instance, node.boot, self._source(name))
            self._tails[name] = FileTail(file, self._stack.enter_context(ChunkWriter(self._data, prefix, latest)))

    def start(
        self,
        command: list[str],
        folder: Path,
        variables: Mapping[str, str],
        image: str | None,
        prepare: Sequence[str] = (),
    ) -> None:
        """Start torchrun in `folder` with the agent's environment and `variables`; in a container if `image` is set.

        `prepare`: command on the node that is executed first and then executes its further arguments.
        """
        self._image = image
        if image is not None:
            command = [str(BASE / CONTAINER_WRAPPER), image, *command]
        command = [*prepare, *command]
        with (self._folder / "torchrun.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, env=os.environ | variables, stdout=log, stderr=subprocess.STDOUT
            )

    def forward_logs(self, final: bool = False) -> None:
        """Copy new lines of all logs to S3. `final`: also a last line without a line end."""
        for local_rank, folder in rank_log_folders(self._logs).items():
            for name in ("stdout", "stderr"):
                self.follow_file(f"{self._rank}{self._first_rank + local_rank}-{name}", folder / f"{name}.log")
        for tail in self._tails.values():
            tail.forward(final)

    @property
    def process_id(self) -> int:
        """Process id of torchrun; its workers are descendants."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Exit code of torchrun; None while it runs."""
        return self._process.poll()

    def output(self) -> str:
        """Output of torchrun itself."""
        return (self._folder / "torchrun.log").read_text(errors="replace")

    def failures(self) -> tuple[RankFailure, ...]:
        """Failures of this node's ranks, from torchrun's report."""
        return parse_failures(self.output(), self._logs, time.time())

    def stop(self) -> None:
        """Stop torchrun with SIGTERM, on which it stops its workers; with SIGKILL after STOP_SECONDS."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                self._remove_container()

    def kill(self) -> None:
        """Kill torchrun and its workers with SIGKILL: for workers without state to save, which may ignore SIGTERM."""
        self._process.send_signal(signal.SIGSTOP)  # so that it starts no process meanwhile
        for child in child_processes(self.process_id):
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.kill()
        self._process.wait()
        self._remove_container()

    def _remove_container(self) -> None:
        """Remove the container: it keeps running and uses the GPUs if its docker client is killed."""
        if self._image is not None:
            with suppress(OSError, subprocess.TimeoutExpired):  # the next start repeats it and reports a failure
                command = ["docker", "rm", "--force", CONTAINER_NAME]
                subprocess.run(command, capture_output=True, timeout=STOP_SECONDS, check=False)

    def close(self) -> None:
        """Copy the remaining lines of all logs to S3."""
        self.forward_logs(final=True)
        self._stack.close()


def child_processes(parent: int, proc: Path = Path("/proc")) -> list[int]:
    """Process ids of the direct children. Field 4 of /proc/PID/stat is the parent, proc_pid_stat(5)."""
    children = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # the process has exited
                continue
            if int(fields[1]) == parent:
                children.append(int(entry.name))
    return children
