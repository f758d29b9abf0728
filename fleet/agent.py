"""The job's agent on a worker: `python -m fleet.agent`, supervised by systemd.

It tells the controller that the node is ready, runs torchrun for each attempt that the controller opens, ships logs and
metrics to S3 as they grow, and tells how the workers ended. It decides nothing: attempts are the controller's. When the
node must leave its group, it saves a checkpoint and completes the lifecycle action.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from contract.events import AgentEvent, RankFailure
from contract.layout import CURRENT_RUN, RunLayout, chunk_prefix, split_s3_uri
from contract.manifest import Archive, Manifest
from contract.objects import Bucket, client
from contract.run import Control, RunRecord
from fleet.bootstrap import metadata
from fleet.chunks import ChunkWriter, Tail
from fleet.failures import failures_in, rank_logs
from fleet.node import BASE, Node, manifest_at_boot, this_node
from fleet.torchrun import job_variables, torchrun_command

POLL_SECONDS = 1.0
# torchrun itself waits 30 s between SIGTERM and SIGKILL of its workers.
STOP_SECONDS = 40.0
# A leaving node's checkpoint: ours is saved when asked for; a user's job may not listen, and gets what a hook gives.
LEAVE_SECONDS, UNASKED_SECONDS, HEARTBEAT_SECONDS = 600.0, 100.0, 60.0


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

    def __init__(self, node: Node, manifest: Manifest, run: RunRecord, number: int) -> None:
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
                ChunkWriter(data, chunk_prefix(stream, node.instance, node.boot, f"{number:04d}-{source}"))
            )

        self._stack, self._writer, self._layout = ExitStack(), writer, layout
        self._tails: dict[str, Tail] = {
            "torchrun": Tail(self._folder / "torchrun.log", writer(layout.logs, "torchrun")),
            "metrics": Tail(self._metrics / "metrics.jsonl", writer(layout.metrics, "metrics")),
        }
        self._process = self._start(node, manifest, run)

    def _start(self, node: Node, manifest: Manifest, run: RunRecord) -> "subprocess.Popen[bytes]":
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
            address=node.address,
            job=job,
            logs=self._logs,
        )
        variables = job_variables(
            manifest=manifest,
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


class Agent:
    """One run on this node."""

    def __init__(self, node: Node, manifest: Manifest, run: RunRecord) -> None:
        self.node, self.manifest, self.run = node, manifest, run
        self.ending = threading.Event()
        self._data = Bucket(manifest.data_bucket, node.region)
        self._layout = RunLayout(run.run)
        self._events = ChunkWriter(self._data, chunk_prefix(self._layout.events, node.instance, node.boot, "agent"))
        self._attempt: Attempt | None = None
        self._memory = BASE / "runs" / run.run / "agent.json"
        self._last, self._told = 0, True

    def tell(self, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> None:
        event = {
            **self.node.stamp(time.time()),
            "run": self.run.run,
            "attempt": attempt,
            "state": state,
            "address": self.node.address,
            "failures": failures,
        }
        print(f"agent: {state}, attempt {attempt}", flush=True)
        self._events.tell(AgentEvent.model_validate(event))
        self._events.hurry()

    def serve(self) -> None:
        """Until the node leaves its group, or the unit is stopped. An outage of S3 ends no job."""
        self._recall()
        self.tell("ready", 0)
        while not self.ending.wait(POLL_SECONDS):
            try:
                if leaving():
                    self._leave()
                    return
                self._step()
            except Exception as error:
                print(f"agent: {type(error).__name__}: {error}", flush=True)
        self._end_attempt()
        self._events.close()

    def _step(self) -> None:
        found = self._data.find(self._layout.control)
        control = Control() if found is None else Control.model_validate_json(found)
        if control.stop:
            self._end_attempt()
        elif self._attempt is not None:
            self._watch(self._attempt, superseded=control.attempt > self._attempt.number)
        elif control.attempt > self._last and self.node.instance in control.nodes:
            self._open(control.attempt)

    def _recall(self) -> None:
        """What an earlier agent of this node began, and whether it said how that ended."""
        if self._memory.exists():
            self._last, self._told = json.loads(self._memory.read_text())
        if not self._told:
            self._ended("workers_failed", self._last)

    def _remember(self, attempt: int, told: bool) -> None:
        self._last, self._told = attempt, told
        self._memory.parent.mkdir(parents=True, exist_ok=True)
        self._memory.write_text(json.dumps([attempt, told]))

    def _ended(self, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> None:
        self.tell(state, attempt, failures)
        self._remember(attempt, told=True)

    def _open(self, number: int) -> None:
        self._remember(number, told=False)
        try:
            self._attempt = Attempt(self.node, self.manifest, self.run, number)
        except Exception as error:  # told like a rank's failure: the user must see it
            text = f"{type(error).__name__}: {error}"
            failure = RankFailure(rank=0, time=time.time(), exitcode=1, message=text[:400], traceback=text)
            self._ended("workers_failed", number, (failure,))

    def _watch(self, attempt: Attempt, superseded: bool) -> None:
        attempt.pump()
        if not attempt.told_up and attempt.workers_up():
            attempt.told_up = True
            self.tell("workers_up", attempt.number)
        code = attempt.ended()
        if code is None and not superseded:
            return
        self._end_attempt()
        if code == 0:
            self._ended("workers_done", attempt.number)
        elif code is not None:
            self._ended("workers_failed", attempt.number, attempt.failures())

    def _end_attempt(self) -> None:
        """After this nothing of the attempt runs, and all that it said is in S3."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.stop()
            attempt.close()

    def _leave(self) -> None:
        """The one way out of a group: a checkpoint, the workers' end, the last words, the completed action."""
        group = self.manifest.groups[0]
        action = {
            "AutoScalingGroupName": group.autoscaling_group,
            "LifecycleHookName": group.lifecycle_hook,
            "InstanceId": self.node.instance,
        }
        autoscaling = client("autoscaling", self.node.region)
        if self._attempt is not None and self._attempt.told_up:
            patience = LEAVE_SECONDS if self.run.job.train else UNASKED_SECONDS
            self._attempt.save(patience, lambda: autoscaling.record_lifecycle_action_heartbeat(**action))
        self._end_attempt()
        self.tell("left", self._last)
        self._events.close()
        autoscaling.complete_lifecycle_action(**action, LifecycleActionResult="CONTINUE")


def leaving() -> bool:
    """Whether Auto Scaling wants this node to go: its target state in the metadata service."""
    try:
        return metadata("meta-data/autoscaling/target-lifecycle-state").strip() == "Terminated"
    except OSError:  # no group's instance, or not in service yet
        return False


def main() -> int:
    node, manifest = this_node(), manifest_at_boot()
    run = RunRecord.model_validate_json(Bucket(manifest.staging_bucket, node.region).read(CURRENT_RUN))
    agent = Agent(node, manifest, run)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.ending.set())
    agent.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
