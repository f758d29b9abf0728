"""The job's agent on a worker: `python -m fleet.agent`, supervised by systemd.

It tells the controller that the node is ready, runs torchrun for each attempt that the controller opens, ships logs and
metrics to S3 as they grow, tells how the workers ended and, under an idle limit, whether they work. It decides nothing:
attempts are the controller's. When the node must leave its group, it saves a checkpoint and completes the lifecycle
action.
"""

import json
import signal
import sys
import threading
import time

from contract.events import ActivityEvent, AgentEvent, RankFailure
from contract.layout import CURRENT_RUN, RunLayout, chunk_prefix
from contract.manifest import Manifest
from contract.objects import Bucket
from contract.run import Control, RunRecord
from fleet.activity import TELL_SECONDS, Activity, cpu_meter, gpu_meter
from fleet.attempt import Attempt
from fleet.chunks import ChunkWriter
from fleet.departure import LEAVE_SECONDS, Departure
from fleet.node import BASE, Node, manifest_at_boot, own_group, this_node

POLL_SECONDS = 1.0
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
        self._group = own_group(node, manifest)
        self._departure = Departure(node, self._group)
        self._activity: Activity | None = None
        self._limits_at = 0.0
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
                if self._departure.cause():
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
            if control.save:
                self._save(LEAVE_SECONDS)
            self._end_attempt()
        elif self._attempt is not None:
            self._watch(self._attempt, control)
        elif control.attempt > self._last and self.node.instance in control.nodes:
            self._open(control)

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

    def _open(self, control: Control) -> None:
        number = control.attempt
        self._remember(number, told=False)
        try:
            self._attempt = Attempt(self.node, self.manifest, self._group, self.run, number, len(control.nodes))
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
        superseded = control.attempt > attempt.number
        if superseded and control.save:
            self._save(RESIZE_SECONDS)
        code = attempt.ended()
        if code is None and not superseded:
            return
        self._end_attempt()
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

    def _end_attempt(self) -> None:
        """After this nothing of the attempt runs, and all that it said is in S3."""
        attempt, self._attempt, self._activity = self._attempt, None, None
        if attempt is not None:
            attempt.stop()
            attempt.close()

    def _leave(self) -> None:
        """The one way out of a group: a checkpoint, the workers' end, the last words, the completed action."""
        self._save(self._departure.seconds())
        self._end_attempt()
        self.tell("left", self._last)
        self._events.close()
        self._departure.complete()


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
