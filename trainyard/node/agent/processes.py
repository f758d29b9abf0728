"""One torchrun on this node: its start, its logs on their way to S3, how its ranks failed, its end."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from trainyard.aws.s3 import Bucket
from trainyard.models.events import RankFailure
from trainyard.models.layout import RunLayout, chunk_prefix
from trainyard.models.manifest import Manifest
from trainyard.models.run import RunRecord
from trainyard.node.agent.rank_failures import failures_in, rank_logs
from trainyard.node.environments.node import JOB_VENV
from trainyard.node.identity import BASE, Node
from trainyard.node.streams import ChunkWriter, Tail

# torchrun itself waits 30 s between SIGTERM and SIGKILL of its workers.
STOP_SECONDS = 40.0
# As playbooks/roles/container's in-container names it: one at a time on a node.
CONTAINER = "trainyard-job"


def job_python(manifest: Manifest, image: str | None) -> Path:
    """The interpreter that has torch, an image's own where the job runs in one. What it runs stays in one environment,
    also when a newer one is made."""
    if image is not None:
        return Path("python")
    return (Path(manifest.node.venv) if manifest.node.venv else JOB_VENV.resolve()) / "bin/python"


class Torchrun:
    """`source`: makes the name of a stream of it from what it is a stream of; `rank`: what one of its ranks is called
    there."""

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
    ) -> None:
        self._folder, self._logs, self._rank = folder, folder / "logs", rank
        self._logs.mkdir(parents=True, exist_ok=True)
        self._layout, self._data = RunLayout(run.run), Bucket(manifest.data_bucket, node.region)
        self._stack = ExitStack()
        self._node, self._source = node, source
        self._tails: dict[str, Tail] = {}
        self.ship("torchrun", folder / "torchrun.log")

    def ship(self, name: str, file: Path, stream: str | None = None) -> None:
        """Send what grows in `file` to S3, once it is there; to the logs where no other stream is named."""
        if name not in self._tails:
            into, node = stream or self._layout.logs, self._node
            prefix = chunk_prefix(into, node.instance, node.boot, self._source(name))
            self._tails[name] = Tail(file, self._stack.enter_context(ChunkWriter(self._data, prefix)))

    def start(self, command: list[str], folder: Path, variables: Mapping[str, str], image: str | None) -> None:
        """The variables come on top of the agent's own. With an `image` it runs in a container of that."""
        self._image = image
        if image is not None:
            command = [str(BASE / "bin/in-container"), image, *command]
        with (self._folder / "torchrun.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, env=os.environ | variables, stdout=log, stderr=subprocess.STDOUT
            )

    def pump(self, last: bool = False) -> None:
        for local, folder in rank_logs(self._logs).items():
            for name in ("stdout", "stderr"):
                self.ship(f"{self._rank}{local}-{name}", folder / f"{name}.log")
        for tail in self._tails.values():
            tail.pump(last)

    @property
    def process(self) -> int:
        """torchrun's process id: its workers are below it."""
        return self._process.pid

    def ended(self) -> int | None:
        return self._process.poll()

    def said(self) -> str:
        """What torchrun itself wrote."""
        return (self._folder / "torchrun.log").read_text(errors="replace")

    def failures(self) -> tuple[RankFailure, ...]:
        return failures_in(self.said(), self._logs, time.time())

    def stop(self) -> None:
        """End torchrun and, through it, its workers."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                self._end_container()

    def kill(self) -> None:
        """End it and all below it at once: of workers that have nothing to save, and may not heed SIGTERM."""
        self._process.send_signal(signal.SIGSTOP)  # it starts and ends nobody meanwhile
        for child in children_of(self.process):
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.kill()
        self._process.wait()
        self._end_container()

    def _end_container(self) -> None:
        """A docker client that is killed leaves its container, and that the node's GPUs."""
        if self._image is not None:
            with suppress(OSError, subprocess.TimeoutExpired):  # the next start does it again, and fails aloud
                command = ["docker", "rm", "--force", CONTAINER]
                subprocess.run(command, capture_output=True, timeout=STOP_SECONDS, check=False)

    def close(self) -> None:
        """Ship what is left; after this all that was said is in S3."""
        self.pump(last=True)
        self._stack.close()


def children_of(parent: int, proc: Path = Path("/proc")) -> list[int]:
    """Processes right below one. Field 4 of /proc/PID/stat is the parent, proc_pid_stat(5)."""
    found = []
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found
