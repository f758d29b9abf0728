"""The launch: a run is minted, the dataset is there, the head is ready, N nodes start or none, the job has started.

Before it adds nodes it puts the lease on the groups: whoever dies from then on, AWS itself ends the workers. A run that
the manifest only wants on more nodes is grown: the new nodes join it at its next attempt, or go, and the old ones stay.
"""

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType

from contract.dataset import INDEX
from contract.layout import CURRENT_RUN, RunLayout, split_s3_uri
from contract.lease import put_lease
from contract.manifest import Manifest
from contract.run import LaunchResult, Outcome, RunRecord
from trainyard import corpus, runs
from trainyard.bringup import BringUpError, Deadline, Nodes, wait_for_head
from trainyard.cluster import Cluster
from trainyard.progress import Display
from trainyard.workers import CapacityError, Workers


class LaunchError(RuntimeError):
    """The launch ended, and nothing that it added runs; the message says why."""


def mint_run(job: str, now: float) -> str:
    """A run id that sorts by time: `20261121-183012-<job>-4f1a`."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{job}-{secrets.token_hex(2)}"


class Launch:
    """One launch: `go` decides what it is, a run of its own or the growth of the one on the cluster."""

    def __init__(self, cluster: Cluster, show: Display) -> None:
        self.cluster, self.show = cluster, show
        self.manifest: Manifest = cluster.manifest
        self.workers = Workers(self.manifest)
        self.phases: dict[str, float] = {}
        self.deadline = Deadline(self.manifest.limits.bring_up_minutes)
        self.record = self._mint()

    def _mint(self) -> RunRecord:
        group, limits, now = self.workers.group, self.manifest.limits, time.time()
        return RunRecord(
            run=mint_run(self.manifest.job.name, now),
            created=now,
            deadline=now + limits.time_limit_minutes * 60,
            manifest=self.manifest.digest(),
            nodes=group.nodes,
            processes_per_node=group.processes_per_node,
            job=self.manifest.job,
            limits=limits,
        )

    def go(self, update: bool = False) -> LaunchResult:
        """Start the manifest's job. With `update`, bring the cluster in line with a manifest that has changed: nothing
        where its run is that already, else another run is stopped first.

        Raises LaunchError, or InputError for what the user can mend; then nothing that it added runs.
        """
        current = self.cluster.current_run()
        alive = current is not None and self._alive(current)
        if current is not None:
            grows = current.manifest == self.record.manifest and current.nodes < self.record.nodes
            if alive and grows and self._started(current):
                return self._taking_back(lambda: self._grow(current), lambda reason: self._stay(current))
            if update and self._started(current) and (current.manifest, current.nodes) == self._wanted():
                self.show.line("run", f"{current.run} is what the manifest says: nothing to launch")
                return self._result(current.run, self.workers.members())
            if alive and not update:
                raise LaunchError(
                    f"run {current.run} is still on the cluster; wait for it, or end it: trainyard stop --stack "
                    f"{self.cluster.stack}"
                )
            if alive:
                self.show.line("run", f"{current.run} makes way for another launch")
                runs.stop(self.cluster)
                self.deadline, self.record = Deadline(self.manifest.limits.bring_up_minutes), self._mint()
            self.deadline.wait("the end of the earlier run's nodes", lambda: not self.workers.members())
        return self._taking_back(self._start, self._close)

    def _wanted(self) -> tuple[str, int]:
        return self.record.manifest, self.record.nodes

    def _alive(self, run: RunRecord) -> bool:
        # A launch that still waits for capacity has a run and no nodes yet.
        young = time.time() < run.created + run.limits.bring_up_minutes * 60
        return self.cluster.outcome(run.run) is None and (young or bool(self.workers.members()))

    def _started(self, run: RunRecord) -> bool:
        control = self.cluster.control(run.run)
        return control is not None and control.started

    def _taking_back(self, way: Callable[[], LaunchResult], undo: Callable[[str], None]) -> LaunchResult:
        """Go the way; whatever breaks on it, what was added goes and `undo` is told why."""
        try:
            with _interruptible():
                return way()
        except BaseException as error:
            self.workers.take_back(self.show)
            undo(str(error) or type(error).__name__)
            if isinstance(error, BringUpError | CapacityError):
                raise LaunchError(str(error)) from None
            raise

    def _start(self) -> LaunchResult:
        """A run of its own."""
        with self._phase("dataset"):
            self._dataset()
        with self._phase("head"):
            wait_for_head(self.cluster, self.show, self.deadline)
        with self._phase("workers"):
            self._open_run()
            nodes = Nodes(self.cluster, self.show, self.deadline, self.record.run)
            nodes.expect(added := self._add(self.record.nodes))
        with self._phase("bring_up"):
            nodes.wait_for_job(self.record.nodes)
        self._say_started()
        return self._result(self.record.run, added)

    def _grow(self, current: RunRecord) -> LaunchResult:
        """More nodes for a run that goes on meanwhile: they are ready before it is interrupted for them."""
        control = self.cluster.control(current.run)
        assert control is not None
        with self._phase("workers"):
            self.show.line("run", f"{current.run} grows from {current.nodes} to {self.record.nodes} nodes")
            nodes = Nodes(self.cluster, self.show, self.deadline, current.run)
            nodes.expect(self._add(self.record.nodes - current.nodes))
        with self._phase("bring_up"):
            nodes.wait_for_agents()
            self._write(current.model_copy(update={"nodes": self.record.nodes}))
            nodes.wait_for_job(self.record.nodes, after=control.attempt)
        self._say_started()
        return self._result(current.run, self.workers.members())

    def _stay(self, current: RunRecord) -> None:
        """After a growth that failed: the run is what it was."""
        if self.cluster.current_run() != current:
            self._write(current)
        if self.cluster.outcome(current.run) is None:
            self.show.line("run", f"{current.run} goes on with its {current.nodes} nodes")

    def _close(self, reason: str) -> None:
        """After a start that failed: its run is over."""
        layout = RunLayout(self.record.run)
        if self.cluster.data.find(layout.record) is not None and self.cluster.outcome(self.record.run) is None:
            outcome = Outcome(state="failed", reason=f"launch: {reason}", attempts=0, ended=time.time())
            self.cluster.data.write(layout.outcome, outcome.model_dump_json().encode())

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.phases[name] = round(time.monotonic() - began, 3)

    def _dataset(self) -> None:
        job = self.manifest.job
        bucket, prefix = split_s3_uri(job.data_uri)
        data = self.cluster.data
        assert bucket == data.name
        name = prefix.removesuffix("/").rsplit("/", 1)[-1]
        if data.find(prefix + INDEX) is not None:
            self.show.line("dataset", f"{job.data_uri} is there")
        elif job.builtin_corpus:
            corpus.prepare(data, name, lambda text: self.show.detail("dataset", text))
            self.show.line("dataset", f"{job.data_uri} filled with the built-in corpus")
        elif job.train is not None:
            raise LaunchError(
                f"{job.data_uri} has no dataset ({INDEX}): upload one there, or set job.builtin_corpus: true to fill "
                "it with the built-in corpus"
            )
        else:
            self.show.line("dataset", f"{job.data_uri} is the job's own matter")
        if job.resume is not None and not any(data.keys(RunLayout(job.resume).checkpoints)):
            raise LaunchError(f"job.resume = {job.resume!r}: that run left no checkpoint in s3://{data.name}")

    def _write(self, record: RunRecord) -> None:
        content = record.model_dump_json().encode()
        self.cluster.data.write(RunLayout(record.run).record, content)
        assert self.cluster.staging is not None
        self.cluster.staging.write(CURRENT_RUN, content)

    def _open_run(self) -> None:
        """From here on the run exists: its record, and the lease that ends it whoever dies."""
        self._write(self.record)
        minutes = self.manifest.limits.lease_minutes
        until = min(time.time() + minutes * 60, self.record.deadline)
        put_lease(self.cluster.autoscaling, [group.autoscaling_group for group in self.manifest.groups], until)
        self.show.line("run", f"{self.record.run}, lease of {minutes:g} minutes")

    def _add(self, wanted: int) -> list[str]:
        self.show.detail("nodes", f"launching {wanted} x {self.workers.group.instance_type}")
        added = self.workers.add(wanted, self.record.run)
        self.show.line("nodes", f"{wanted} of {wanted} launched: {', '.join(added)}")
        return added

    def _say_started(self) -> None:
        nodes, each = self.record.nodes, self.record.processes_per_node
        self.show.line("job", f"started: {nodes * each} processes on {nodes} nodes")

    def _result(self, run: str, nodes: list[str]) -> LaunchResult:
        return LaunchResult(
            run=run,
            nodes=tuple(nodes),
            data_uri=self.manifest.job.data_uri,
            run_uri=f"s3://{self.manifest.data_bucket}/{RunLayout(run).prefix}",
            phases=self.phases,
        )


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the launch as Ctrl-C does: by taking back what it added."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    earlier = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, earlier)
