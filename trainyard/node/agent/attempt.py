"""torchrun for one attempt on this node: the job's sources, its variables, its metrics, a last checkpoint."""

import hashlib
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from trainyard.aws.s3 import Bucket, client
from trainyard.models.events import RankFailure
from trainyard.models.layout import attempt_source, split_s3_uri
from trainyard.models.manifest import Archive, Manifest, WorkerGroup
from trainyard.models.run import RunRecord
from trainyard.node.agent.processes import Torchrun, job_python
from trainyard.node.agent.rank_failures import rank_logs
from trainyard.node.agent.torchrun import job_variables, torchrun_command
from trainyard.node.environments import source as source_environment
from trainyard.node.identity import BASE, Node

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


def scratch() -> Path:
    """Where the job may cache: the instance store, where the node has one."""
    disks = BASE / "scratch"
    return disks if disks.is_dir() else BASE


class Attempt(Torchrun):
    """torchrun for one attempt on this node. `network`: what NCCL calls the one that the nodes were verified on."""

    def __init__(
        self,
        node: Node,
        manifest: Manifest,
        group: WorkerGroup,
        run: RunRecord,
        number: int,
        nodes: int,
        network: str | None = None,
    ) -> None:
        self.number, self.told_up = number, False
        self._processes = run.processes_per_node
        folder = BASE / "runs" / run.run / f"attempt-{number:04d}"
        super().__init__(node, manifest, run, folder, lambda name: attempt_source(number, name), "rank")
        self._metrics, self._request = folder / "metrics", folder / "checkpoint-request"
        self._metrics.mkdir(exist_ok=True)
        self.ship("metrics", self._metrics / "metrics.jsonl", self._layout.metrics)
        self._start(node, manifest, group, run, nodes, network)

    def _start(
        self, node: Node, manifest: Manifest, group: WorkerGroup, run: RunRecord, nodes: int, network: str | None
    ) -> None:
        if run.job.source is None:
            assert run.job.train is not None
            config = self._folder / "config.json"
            config.write_text(run.job.train.model_dump_json())
            folder, job = Path(node.bundle), ["-m", "trainer", "--config", str(config)]
        else:
            assert run.job.command is not None
            folder, job = fetch_source(run.job.source, node.region), list(run.job.command)
        command = torchrun_command(
            python=job_python(manifest, run.job.container),
            head=manifest.head,
            rendezvous=f"{run.run}-{self.number}",
            processes=run.processes_per_node,
            nodes=nodes,
            address=node.address,
            job=job,
            logs=self._logs,
        )
        wanted = folder / source_environment.LIST
        # An image has what its job needs.
        if run.job.source is not None and run.job.container is None and wanted.exists():
            before = [sys.executable, source_environment.__file__, str(wanted), manifest.node.package_index or ""]
            command = [*before, *command]
        variables = job_variables(
            manifest=manifest,
            group=group,
            run=run,
            attempt=self.number,
            address=node.address,
            metrics=self._metrics,
            request=self._request,
            cache=scratch() / "cache",
            network=network,
        )
        self.start(command, folder, variables | secrets(run.job.secrets, node.region), run.job.container)

    def workers_up(self) -> bool:
        """torchrun makes a rank's logs when it starts that rank, and starts them together."""
        return len(rank_logs(self._logs)) >= self._processes

    def failures(self) -> tuple[RankFailure, ...]:
        if self.ended() == source_environment.FAILED:  # told like a rank's failure: the user must see it
            code, text = source_environment.FAILED, source_environment.complaint(self.said())
            return (RankFailure(rank=0, time=time.time(), exitcode=code, message=text, traceback=text),)
        return super().failures()

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
