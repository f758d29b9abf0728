"""torchrun for one attempt on this node: its sources, its variables, its logs on their way to S3, its end."""

import hashlib
import os
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from contract.events import RankFailure
from contract.layout import RunLayout, attempt_source, chunk_prefix, split_s3_uri
from contract.manifest import Archive, Manifest, WorkerGroup
from contract.objects import Bucket, client
from contract.run import RunRecord
from fleet.chunks import ChunkWriter, Tail
from fleet.failures import failures_in, rank_logs
from fleet.node import BASE, Node
from fleet.torchrun import job_variables, torchrun_command

# torchrun itself waits 30 s between SIGTERM and SIGKILL of its workers.
STOP_SECONDS = 40.0
HEARTBEAT_SECONDS = 60.0


def fetch_source(source: Archive, region: str) -> Path:
    """The user's sources, unpacked once for each content. Raises ValueError when the checksum is not the manifest's."""
    folder = BASE / "job" / source.sha256
    if folder.exists():
        return folder
    bucket, key = split_s3_uri(source.uri)
    content = Bucket(bucket, region).read(key)
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise ValueError(f"{source.uri} has SHA-256 {found}, the run says {source.sha256}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder.parent) as archive:
        archive.write(content)
        archive.flush()
        work = Path(tempfile.mkdtemp(dir=folder.parent))
        with tarfile.open(archive.name) as tar:
            tar.extractall(work)  # noqa: S202 (the checksum says that it is the operator's own)
    work.chmod(0o755)
    work.rename(folder)
    return folder


def secrets(names: dict[str, str], region: str) -> dict[str, str]:
    """Environment variable -> value of the SSM parameter that the stack names."""
    ssm = client("ssm", region) if names else None
    return {
        variable: ssm.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"]
        for variable, name in names.items()
        if ssm is not None
    }


class Attempt:
    """torchrun for one attempt on this node, with its logs on their way to S3."""

    def __init__(
        self, node: Node, manifest: Manifest, group: WorkerGroup, run: RunRecord, number: int, nodes: int
    ) -> None:
        self.number, self.told_up = number, False
        self._processes = run.processes_per_node
        self._folder = BASE / "runs" / run.run / f"attempt-{number:04d}"
        self._logs, self._metrics = self._folder / "logs", self._folder / "metrics"
        self._request = self._folder / "checkpoint-request"
        for folder in (self._logs, self._metrics):
            folder.mkdir(parents=True, exist_ok=True)
        layout, data = RunLayout(run.run), Bucket(manifest.data_bucket, node.region)

        def writer(stream: str, source: str) -> ChunkWriter:
            return self._stack.enter_context(
                ChunkWriter(data, chunk_prefix(stream, node.instance, node.boot, attempt_source(number, source)))
            )

        self._stack, self._writer, self._layout = ExitStack(), writer, layout
        self._tails: dict[str, Tail] = {
            "torchrun": Tail(self._folder / "torchrun.log", writer(layout.logs, "torchrun")),
            "metrics": Tail(self._metrics / "metrics.jsonl", writer(layout.metrics, "metrics")),
        }
        self._process = self._start(node, manifest, group, run, nodes)

    def _start(
        self, node: Node, manifest: Manifest, group: WorkerGroup, run: RunRecord, nodes: int
    ) -> "subprocess.Popen[bytes]":
        if run.job.source is None:
            assert run.job.train is not None
            config = self._folder / "config.json"
            config.write_text(run.job.train.model_dump_json())
            folder, job = Path(node.bundle), ["-m", "trainer", "--config", str(config)]
        else:
            assert run.job.command is not None
            folder, job = fetch_source(run.job.source, node.region), list(run.job.command)
        venv = Path(manifest.node.venv) if manifest.node.venv else BASE / "job-venv"
        command = torchrun_command(
            python=venv / "bin/python",
            manifest=manifest,
            run=run,
            attempt=self.number,
            nodes=nodes,
            address=node.address,
            job=job,
            logs=self._logs,
        )
        variables = job_variables(
            manifest=manifest,
            group=group,
            run=run,
            attempt=self.number,
            address=node.address,
            metrics=self._metrics,
            request=self._request,
            cache=BASE / "cache",
        )
        with (self._folder / "torchrun.log").open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | variables | secrets(run.job.secrets, node.region),
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def pump(self, last: bool = False) -> None:
        for local, folder in rank_logs(self._logs).items():
            for name in ("stdout", "stderr"):
                source = f"rank{local}-{name}"
                if source not in self._tails:
                    self._tails[source] = Tail(folder / f"{name}.log", self._writer(self._layout.logs, source))
        for tail in self._tails.values():
            tail.pump(last)

    def workers_up(self) -> bool:
        """torchrun makes a rank's logs when it starts that rank, and starts them together."""
        return len(rank_logs(self._logs)) >= self._processes

    @property
    def process(self) -> int:
        """torchrun's process id: its workers are below it."""
        return self._process.pid

    def ended(self) -> int | None:
        return self._process.poll()

    def failures(self) -> tuple[RankFailure, ...]:
        report = (self._folder / "torchrun.log").read_text(errors="replace")
        return failures_in(report, self._logs, time.time())

    def save(self, seconds: float, extend: Callable[[], object]) -> bool:
        """Ask the ranks for a checkpoint and wait for it, extending the node's stay meanwhile; whether it came."""
        self._request.touch()
        deadline = extend_at = time.monotonic()
        deadline += seconds
        while self._request.exists() and self.ended() is None and time.monotonic() < deadline:
            if time.monotonic() >= extend_at:
                extend_at += HEARTBEAT_SECONDS
                extend()
            self.pump()
            time.sleep(0.2)
        return not self._request.exists()

    def stop(self) -> None:
        """End torchrun and, through it, its workers."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def close(self) -> None:
        """Ship what is left; after this all that the attempt said is in S3."""
        self.pump(last=True)
        self._stack.close()
