"""The job's agent on a worker: `python -m trainyard.node.agent`, supervised by systemd.

It tells the controller that the node is ready, takes part in the checks that the controller orders and tells what it
measured, runs torchrun for each attempt that the controller opens, ships logs and metrics to S3 as they grow, tells how
the workers ended and, under an idle limit, whether they work. It decides nothing: checks and attempts are the
controller's. When the node must leave its group, it saves a checkpoint and completes the lifecycle action.
"""

import threading
import time

from trainyard.aws.s3 import Bucket
from trainyard.models.events import ActivityEvent, AgentEvent, RankFailure, VerificationEvent
from trainyard.models.health_check import Fault, Measured
from trainyard.models.layout import RunLayout, chunk_prefix
from trainyard.models.manifest import Manifest
from trainyard.models.run import Check, Control, RunRecord
from trainyard.node.agent.activity import TELL_SECONDS, Activity, cpu_meter, gpu_meter
from trainyard.node.agent.attempt import Attempt
from trainyard.node.agent.drain import LEAVE_SECONDS, Departure
from trainyard.node.agent.health_check import CheckRun, Findings, report
from trainyard.node.agent.state import Memory
from trainyard.node.identity import BASE, NEWER_CODE, Node, outdated, own_group
from trainyard.node.streams import ChunkWriter

POLL_SECONDS = 1.0
CHECK_POLL_SECONDS = 0.2  # nothing else waits for a second when all nodes do
# The next attempt's new nodes wait at the rendezvous meanwhile: less than its join timeout.
RESIZE_SECONDS = 240.0


class Agent:
    """One run on this node."""

    def __init__(self, node: Node, manifest: Manifest, run: RunRecord) -> None:
        self.node, self.manifest, self.run = node, manifest, run
        self.ending = threading.Event()
        self._data = Bucket(manifest.data_bucket, node.region)
        self._layout = RunLayout(run.run)
        self._events = ChunkWriter(self._data, chunk_prefix(self._layout.events, node.instance, node.boot, "agent"))
        self._attempt: Attempt | None = None
        self._check: CheckRun | None = None
        self._group = own_group(node, manifest)
        self._departure = Departure(node, self._group)
        self._activity: Activity | None = None
        self._limits_at = 0.0
        self._memory = Memory(BASE / "runs" / run.run / "agent.json")
        self._looked_at = 0.0

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

    def serve(self) -> int:
        """Until the node leaves its group, or the unit is stopped; the exit code. An outage of S3 ends no job.

        An agent that has nothing to do ends as well when there is newer code, and is started again from it.
        """
        self._recall()
        self.tell("ready", 0)
        while not self.ending.wait(CHECK_POLL_SECONDS if self._check is not None else POLL_SECONDS):
            try:
                if self._departure.cause():
                    self._leave()
                    return 0
                self._step()
                if self._attempt is None and self._check is None and outdated(self.node):
                    print("agent: there is newer code", flush=True)
                    self._events.close()
                    return NEWER_CODE
            except Exception as error:
                print(f"agent: {type(error).__name__}: {error}", flush=True)
        self._end()
        self._events.close()
        return 0

    def _step(self) -> None:
        if self._check is not None:
            self._check.pump()
            if self._check.over():
                self._report(self._check)
            if time.monotonic() < self._looked_at + POLL_SECONDS:
                return
        self._looked_at = time.monotonic()
        found = self._data.find(self._layout.control)
        control = Control() if found is None else Control.model_validate_json(found)
        if control.stop:
            if control.save:
                self._save(LEAVE_SECONDS)
            self._end()
            return
        if self._check is not None and control.check != self._check.order:
            self._end_check()  # the controller does not wait for it any more
        if self._attempt is not None:
            self._watch(self._attempt, control)
        elif control.attempt > self._memory.now.attempt and self.node.instance in control.nodes:
            self._open(control)
        elif (check := control.check) is not None and self._is_new(check):
            self._begin(check)

    def _is_new(self, check: Check) -> bool:
        return self.node.instance in check.nodes and check.number > self._memory.now.check

    def _recall(self) -> None:
        """What an earlier agent of this node began, and whether it said how that ended."""
        before = self._memory.now
        if not before.attempt_told:
            self._ended("workers_failed", before.attempt)
        if not before.check_told:
            self._tell_check(self._failed(before.check, "the node's agent ended in the middle of the check"))

    def _ended(self, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> None:
        self.tell(state, attempt, failures)
        self._memory.put(attempt=attempt, attempt_told=True)

    def _begin(self, order: Check) -> None:
        """Take part in a check."""
        self._memory.put(check=order.number, check_told=False)
        print(f"agent: check {order.number}", flush=True)
        try:
            self._check = CheckRun(self.node, self.manifest, self._group, self.run, order)
        except Exception as error:
            self._tell_check(self._failed(order.number, f"the check can't begin: {type(error).__name__}: {error}"))

    def _failed(self, check: int, text: str) -> VerificationEvent:
        why = Findings((Fault(kind="crashed", text=text[:400]),))
        return report(self.node, self._group, self.run, check, Measured(), why)

    def _report(self, check: CheckRun) -> None:
        """Tell what a check that is over has found."""
        self._tell_check(check.report())
        self._end_check()

    def _tell_check(self, told: VerificationEvent) -> None:
        self._events.tell(told)
        self._events.hurry()
        own = told.measured.network if told.measured.provider else None
        self._memory.put(check=told.check, check_told=True, network=own)

    def _open(self, control: Control) -> None:
        number, network = control.attempt, self._memory.now.network
        self._memory.put(attempt=number, attempt_told=False)
        nodes = len(control.nodes)
        try:
            self._attempt = Attempt(self.node, self.manifest, self._group, self.run, number, nodes, network)
        except Exception as error:  # told like a rank's failure: the user must see it
            text = f"{type(error).__name__}: {error}"
            failure = RankFailure(rank=0, time=time.time(), exitcode=1, message=text[:400], traceback=text)
            self._ended("workers_failed", number, (failure,))

    def _watch(self, attempt: Attempt, control: Control) -> None:
        attempt.pump()
        if not attempt.told_up and attempt.workers_up():
            attempt.told_up = True
            self.tell("workers_up", attempt.number)
        if attempt.told_up:
            self._look(attempt, time.time())
        # A check of this node comes when its attempt is lost, though a rank here may not know that yet.
        superseded = control.attempt > attempt.number or (control.check is not None and self._is_new(control.check))
        if superseded and control.save:
            self._save(RESIZE_SECONDS)
        code = attempt.ended()
        if code is None and not superseded:
            return
        self._end()
        if code == 0:
            self._ended("workers_done", attempt.number)
        elif code is not None:
            self._ended("workers_failed", attempt.number, attempt.failures())

    def _look(self, attempt: Attempt, now: float) -> None:
        """Whether the job works, where the run has a limit for idleness. A later launch may change that."""
        if now - self._limits_at >= TELL_SECONDS:
            self._limits_at = now
            if found := self._data.find(self._layout.record):
                self.run = RunRecord.model_validate_json(found)
        if self.run.limits.idle_minutes is None:
            self._activity = None
            return
        if self._activity is None:
            gpus = self._group.gpus and self.manifest.node.accelerators
            meter = gpu_meter() if gpus else cpu_meter(attempt.process, self.run.processes_per_node)
            self._activity = Activity(meter)
        if told := self._activity.look(now):
            reading, since = told
            event = {
                **self.node.stamp(now),
                "run": self.run.run,
                "attempt": attempt.number,
                "idle_since": since,
                "measured": reading.measured,
                "percent": reading.percent,
            }
            self._events.tell(ActivityEvent.model_validate(event))

    def _save(self, seconds: float) -> None:
        """A checkpoint of the attempt that runs, where the job makes one when it is asked. Others have what torchrun
        gives their ranks between SIGTERM and SIGKILL."""
        if self._attempt is not None and self._attempt.told_up and self.run.job.saves_on_request:
            self._attempt.save(seconds, self._departure.stay_on)

    def _end_check(self) -> None:
        """After this nothing of the check runs, and all that it said is in S3."""
        check, self._check = self._check, None
        if check is not None:
            check.kill()
            check.close()

    def _end(self) -> None:
        """After this nothing of attempt or check runs, and all that they said is in S3."""
        self._end_check()
        attempt, self._attempt, self._activity = self._attempt, None, None
        if attempt is not None:
            attempt.stop()
            attempt.close()

    def _leave(self) -> None:
        """The one way out of a group: a checkpoint, the workers' end, the last words, the completed action."""
        self._save(self._departure.seconds())
        self._end()
        self.tell("left", self._memory.now.attempt)
        self._events.close()
        self._departure.complete()
