"""The launch: a run is minted, the dataset is there, the head is ready, N nodes start or none, the job has started.

Before it adds nodes it puts the lease on the groups: whoever dies from then on, AWS itself ends the workers.
"""

import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from contract.dataset import INDEX
from contract.events import NODE_EVENT, AgentEvent, PlayEvent, ServiceEvent, TaskEvent
from contract.layout import CURRENT_RUN, HEAD_EVENTS, RunLayout, split_s3_uri
from contract.lease import put_lease
from contract.manifest import Manifest, WorkerGroup
from contract.objects import client
from contract.run import LaunchResult, Outcome, RunRecord
from contract.streams import Cursor
from trainyard import corpus
from trainyard.cluster import Cluster
from trainyard.progress import Display

POLL_SECONDS = 1.0
# LaunchInstances takes at most 100 instances a call.
INSTANCES_PER_CALL = 100
# A play that failed is started again by its unit: an index or a mirror may have been away for a moment.
HOPELESS_PLAYS = 2
SILENT, SILENT_SECONDS, CONSOLE_LINES = "no sign yet", 15 * 60.0, 20


class LaunchError(RuntimeError):
    """The launch ended with nothing running; the message says why."""


def mint_run(job: str, now: float) -> str:
    """A run id that sorts by time: `20261121-183012-<job>-4f1a`."""
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%d-%H%M%S}-{job}-{secrets.token_hex(2)}"


class Launch:
    """One launch, top to bottom in `go`."""

    def __init__(self, cluster: Cluster, show: Display) -> None:
        self.cluster, self.show = cluster, show
        self.manifest: Manifest = cluster.manifest
        self.group: WorkerGroup = self.manifest.groups[0]
        self.launched: list[str] = []
        self.phases: dict[str, float] = {}
        now = time.time()
        limits = self.manifest.limits
        self.deadline = now + limits.bring_up_minutes * 60
        self.record = RunRecord(
            run=mint_run(self.manifest.job.name, now),
            created=now,
            deadline=now + limits.time_limit_minutes * 60,
            nodes=self.group.nodes,
            processes_per_node=self.group.processes_per_node,
            job=self.manifest.job,
            limits=limits,
        )
        self.layout = RunLayout(self.record.run)

    def go(self) -> LaunchResult:
        """Raises LaunchError, or InputError for what the user can mend; then nothing that it added runs."""
        self._refuse_second_run()
        try:
            with _interruptible():
                with self._phase("dataset"):
                    self._dataset()
                with self._phase("head"):
                    self._wait_for_head()
                with self._phase("workers"):
                    self._open_run()
                    self._start_nodes()
                with self._phase("bring_up"):
                    self._wait_for_job()
        except BaseException as error:
            self._take_back(str(error) or type(error).__name__)
            raise
        return LaunchResult(
            run=self.record.run,
            nodes=tuple(self.launched),
            data_uri=self.manifest.job.data_uri,
            run_uri=f"s3://{self.manifest.data_bucket}/{self.layout.prefix}",
            phases=self.phases,
        )

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.phases[name] = round(time.monotonic() - began, 3)

    def _until(self, what: str, done: Callable[[], bool]) -> None:
        """Poll until done; LaunchError with what was waited for when the bring-up deadline is over."""
        while not done():
            if time.time() > self.deadline:
                minutes = self.manifest.limits.bring_up_minutes
                raise LaunchError(f"{what} did not come within {minutes:g} minutes (launch.bring_up_minutes)")
            time.sleep(POLL_SECONDS)

    def _members(self) -> list[str]:
        names = [group.autoscaling_group for group in self.manifest.groups]
        found = self.cluster.autoscaling.describe_auto_scaling_groups(AutoScalingGroupNames=names)
        return [instance["InstanceId"] for group in found["AutoScalingGroups"] for instance in group["Instances"]]

    def _refuse_second_run(self) -> None:
        run = self.cluster.current_run()
        if run is None:
            return
        # A launch that still waits for capacity has a run and no nodes yet.
        young = time.time() < run.created + run.limits.bring_up_minutes * 60
        if self.cluster.outcome(run.run) is None and (young or self._members()):
            raise LaunchError(
                f"run {run.run} is still on the cluster; wait for it, or end it: trainyard stop --stack "
                f"{self.cluster.stack}"
            )
        self._until("the end of the earlier run's nodes", lambda: not self._members())

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

    def _wait_for_head(self) -> None:
        """Store and controller are up, in the newest boot of the head that the manifest names."""
        assert self.cluster.staging is not None
        head = self.manifest.head
        cursor = Cursor(self.cluster.staging, f"{HEAD_EVENTS}{head.instance}/")
        services: dict[str, set[str]] = {}
        plays = Plays()

        def ready() -> bool:
            for _, line in cursor.lines():
                event = NODE_EVENT.validate_json(line)
                self._tell(event)
                if isinstance(event, ServiceEvent):
                    services.setdefault(event.boot, set()).add(event.service)
                plays.hear(event)
            newest = max([*services, *plays.boots], default="")
            if plays.failed(head.instance, newest):
                raise LaunchError(f"the head {head.instance} could not be configured: {plays.message}")
            return services.get(newest) == {"rendezvous", "controller"}

        self._until("the head's rendezvous store and controller", ready)
        self.show.line("head", f"{head.address} ready")

    def _open_run(self) -> None:
        """From here on the run exists: its record, and the lease that ends it whoever dies."""
        content = self.record.model_dump_json().encode()
        self.cluster.data.write(self.layout.record, content)
        assert self.cluster.staging is not None
        self.cluster.staging.write(CURRENT_RUN, content)
        until = min(time.time() + self.manifest.limits.lease_minutes * 60, self.record.deadline)
        put_lease(self.cluster.autoscaling, [group.autoscaling_group for group in self.manifest.groups], until)
        self.show.line("run", f"{self.record.run}, lease of {self.manifest.limits.lease_minutes:g} minutes")

    def _start_nodes(self) -> None:
        wanted = self.group.nodes
        self.show.detail("nodes", f"launching {wanted} x {self.group.instance_type}")
        while len(self.launched) < wanted:
            count = min(INSTANCES_PER_CALL, wanted - len(self.launched))
            answer = self.cluster.autoscaling.launch_instances(
                AutoScalingGroupName=self.group.autoscaling_group,
                RequestedCapacity=count,
                SubnetIds=[self.group.subnets[0]],
                ClientToken=f"{self.record.run}-{len(self.launched)}",
                RetryStrategy="none",
            )
            started = [name for part in answer.get("Instances", []) for name in part["InstanceIds"]]
            self.launched += started
            if len(started) < count:
                raise LaunchError(
                    f"{len(self.launched)} of {wanted} nodes could be launched, so none stays: {_reasons(answer)}"
                )
        self.show.line("nodes", f"{len(self.launched)} of {wanted} launched: {', '.join(self.launched)}")

    def _wait_for_job(self) -> None:
        """Every agent reports its workers up; of the built-in trainer also the first metric line is there."""
        cursor = Cursor(self.cluster.data, self.layout.events)
        up: dict[int, set[str]] = {}
        last: dict[str, str] = dict.fromkeys(self.launched, SILENT)
        plays = Plays()
        silent_until = time.time() + min(SILENT_SECONDS, self.manifest.limits.bring_up_minutes * 60)

        def started() -> bool:
            for _, line in cursor.lines():
                event = NODE_EVENT.validate_json(line)
                last[event.instance] = self._tell(event) or last.get(event.instance, "")
                plays.hear(event)
                if plays.failed(event.instance, event.boot):
                    raise LaunchError(f"node {event.instance} could not be configured: {plays.message}")
                if isinstance(event, AgentEvent) and event.state in {"workers_up", "workers_done"}:
                    up.setdefault(event.attempt, set()).add(event.instance)
            outcome = self.cluster.outcome(self.record.run)
            if outcome is not None:
                return self._ended(outcome)
            silent = [node for node, text in last.items() if text == SILENT]
            if silent and time.time() > silent_until:
                minutes = round(SILENT_SECONDS / 60)
                console = self._console(silent[0])
                raise LaunchError(f"no sign of {', '.join(silent)} within {minutes} minutes of its launch{console}")
            if not any(len(nodes) == self.group.nodes for nodes in up.values()):
                return False
            return self._metrics_are_there()

        try:
            self._until("the job's start", started)
        except LaunchError as error:
            if "did not come" in str(error):
                states = "; ".join(f"{node}: {text}" for node, text in last.items())
                raise LaunchError(f"{error}. Last seen: {states}") from None
            raise
        processes = self.group.nodes * self.group.processes_per_node
        self.show.line("job", f"started: {processes} processes on {self.group.nodes} nodes")

    def _metrics_are_there(self) -> bool:
        """The first metric line is there; a user's job has none."""
        return self.manifest.job.train is None or any(self.cluster.data.keys(self.layout.metrics))

    def _ended(self, outcome: Outcome) -> bool:
        """A job that ended before it was seen to start: well, or with its traceback."""
        if outcome.state == "succeeded":
            return True
        trace = f"\n{outcome.failure.traceback}" if outcome.failure else ""
        raise LaunchError(f"the job {outcome.state}: {outcome.reason}{trace}")

    def _tell(self, event: Any) -> str:
        """Show an event; returns what it says of its node."""
        node = event.instance
        match event:
            case TaskEvent(status="failed"):
                text = f"{event.ansible_role}: {event.task}: {event.message}"
                self.show.line(node, f"failed: {text}")
            case TaskEvent():
                text = f"{event.ansible_role}: {event.task}"
                self.show.detail(node, text)
            case PlayEvent(status="started"):
                text = "configuring itself"
                self.show.line(node, text)
            case PlayEvent(status="ok"):
                text = f"configured, {event.changed} changed, {event.seconds:.1f} s"
                self.show.line(node, text)
            case AgentEvent():
                text = event.state.replace("_", " ") + (f", attempt {event.attempt}" if event.attempt else "")
                self.show.line(node, text)
            case _:
                return ""
        return text

    def _console(self, node: str) -> str:
        """The end of a node's console: what failed before it could write to S3 stands there."""
        try:
            answer = client("ec2", self.cluster.region).get_console_output(InstanceId=node)
        except ClientError as error:
            return f" (its console can't be read: {error})"
        lines = answer.get("Output", "").rstrip().splitlines()[-CONSOLE_LINES:]
        return "".join(f"\n  {line}" for line in [f"the console of {node} ends:", *lines]) if lines else ""

    def _take_back(self, reason: str) -> None:
        """Only what this launch added goes; then its run is over. One that has gone meanwhile hinders no other."""
        for name in self.launched:
            for call, more in (
                ("terminate_instance_in_auto_scaling_group", {"ShouldDecrementDesiredCapacity": True}),
                # Nothing is to be saved on it: the hook need not hold it.
                (
                    "complete_lifecycle_action",
                    {
                        "AutoScalingGroupName": self.group.autoscaling_group,
                        "LifecycleHookName": self.group.lifecycle_hook,
                        "LifecycleActionResult": "CONTINUE",
                    },
                ),
            ):
                try:
                    getattr(self.cluster.autoscaling, call)(InstanceId=name, **more)
                except (BotoCoreError, ClientError) as error:
                    self.show.detail(name, str(error))
        if self.launched:
            self.show.line("nodes", f"taken back: {', '.join(self.launched)}")
        if self.cluster.data.find(self.layout.record) is not None and self.cluster.outcome(self.record.run) is None:
            outcome = Outcome(state="failed", reason=f"launch: {reason}", attempts=0, ended=time.time())
            self.cluster.data.write(self.layout.outcome, outcome.model_dump_json().encode())


class Plays:
    """Which nodes' plays have failed. A unit starts a failed play again, so one failure is not the end."""

    def __init__(self) -> None:
        self.boots: set[str] = set()
        self.message = ""
        self._count: dict[tuple[str, str], int] = {}

    def hear(self, event: Any) -> None:
        if not isinstance(event, PlayEvent):
            return
        self.boots.add(event.boot)
        if event.status == "failed":
            self._count[event.instance, event.boot] = self._count.get((event.instance, event.boot), 0) + 1
            self.message = event.message
        elif event.status == "ok":
            self._count[event.instance, event.boot] = 0

    def failed(self, instance: str, boot: str) -> bool:
        """Whether the play of this boot failed as often as makes it hopeless."""
        return self._count.get((instance, boot), 0) >= HOPELESS_PLAYS


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


def _reasons(answer: dict[str, Any]) -> str:
    errors = [
        f"{error.get('ErrorCode', '?')} in {error.get('AvailabilityZone', '?')}: {error.get('ErrorMessage', '')}"
        for error in answer.get("Errors", [])
    ]
    return "; ".join(errors) or "AWS gave no reason"
