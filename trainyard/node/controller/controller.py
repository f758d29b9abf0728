"""The controller on the head: `python -m trainyard.node.controller`, supervised by systemd.

It owns a run's checks and attempts: has nodes checked before an attempt takes them in, opens one when all are ready and
healthy, opens the next when one is lost, ends the cluster when the job is done (its results verified in S3) or has
failed for good. It renews the lease while the job lives. All that it
knows is in S3, so that it may be killed and started again at any time.
"""

import time

from botocore.exceptions import ClientError
from pydantic import ValidationError

from trainyard.aws.s3 import Bucket
from trainyard.models.events import ActivityEvent, AgentEvent, VerificationEvent
from trainyard.models.layout import CURRENT_RUN, RunLayout, complete_checkpoints
from trainyard.models.manifest import Manifest
from trainyard.models.metrics import Results
from trainyard.models.run import Check, Control, LostAttempt, Outcome, RunRecord
from trainyard.models.streams import Cursor, node_events
from trainyard.node.controller.failure_analysis import Fleet, account_for, failed_for_good, root_cause
from trainyard.node.controller.health_checks import Checks
from trainyard.node.controller.idle import Idleness
from trainyard.node.controller.worker_groups import Groups
from trainyard.node.identity import Node

POLL_SECONDS = 1.0
MEMBERS_SECONDS = 5.0
# The lease moves forward four times in its length, so that one missed call ends nothing.
RENEWALS_PER_LEASE = 4
# torchrun ends its workers in at most 30 s once one has failed.
REPORTS_SECONDS = 45.0


class Supervision:
    """One run from its record to its outcome."""

    def __init__(self, node: Node, manifest: Manifest, run: RunRecord) -> None:
        self.run, self.layout = run, RunLayout(run.run)
        self.data = Bucket(manifest.data_bucket, node.region)
        self.groups = Groups(manifest.groups, node.region)
        self.fleet, self.idleness = Fleet(), Idleness()
        self.checks = Checks(node, manifest, run.run, self.data)
        self._events = Cursor(self.data, self.layout.events)
        self._members: list[str] = []
        self._spare_since: dict[str, float] = {}
        self._sent_away: set[str] = set()
        self._members_at = self._renewed_at = self._failed_at = 0.0
        found = self.data.find(self.layout.control)
        self.control = Control() if found is None else Control.model_validate_json(found)

    def step(self) -> Outcome | None:
        """One look at everything; the outcome when the run is over."""
        for event in node_events(self._events):
            if isinstance(event, AgentEvent):
                self.fleet.hear(event)
            elif isinstance(event, ActivityEvent):
                self.idleness.hear(event)
            elif isinstance(event, VerificationEvent):
                self.checks.hear(event)
        now, limits = time.time(), self.run.limits
        if now - self._members_at >= MEMBERS_SECONDS:
            self._members, self._members_at = self.groups.members(), now
        if not self.control.started and (self._in_all("workers_up") or self._in_all("workers_done")):
            self._order(started=True)
        if now > self.run.deadline:
            what = (
                "its capacity's time"
                if self.run.cut_short
                else f"the time limit of {limits.time_limit_minutes:g} minutes"
            )
            return self.outcome("failed", f"{what} is over")
        if not self.control.started and now > self.run.created + limits.bring_up_minutes * 60:
            return self.outcome(
                "failed", f"the job had not started within {limits.bring_up_minutes:g} minutes{self._why()}"
            )
        if now - self._renewed_at >= limits.lease_minutes * 60 / RENEWALS_PER_LEASE:
            self.groups.renew_lease(self.run.lease_end(now))
            self._renewed_at = now
        return self._judge(now)

    def _order(self, **changes: object) -> None:
        """Change what is ordered: agents see it at their next look, and a controller started again goes on from it."""
        self.control = self.control.model_copy(update=changes)
        self.data.write(self.layout.control, self.control.model_dump_json().encode())

    def _in_all(self, state: str) -> bool:
        nodes = self.control.nodes
        return bool(nodes) and self.fleet.all_in(state, self.control.attempt, nodes)

    def _judge(self, now: float) -> Outcome | None:
        attempt, nodes = self.control.attempt, self.control.nodes
        if attempt == 0 or self.control.waiting_since is not None:
            return self._open_next(now) or self._waited_in_vain(now)
        if self._in_all("workers_done"):
            return self._verified()
        gone, failed = self.fleet.gone(nodes, self._members), self.fleet.failed(attempt, nodes)
        if not gone and not failed:
            if self.run.nodes > len(nodes):
                if outcome := self._open_next(now, save=True):
                    return outcome
            elif self.control.check is not None:
                self._order(check=None)  # of nodes that a growth had brought, and that went again
            self._end_surplus(now)
            minutes = self.run.limits.idle_minutes
            idle = minutes and self.idleness.over(attempt, nodes, minutes, now)
            return self.outcome("stopped", idle) if idle else None
        self._failed_at = self._failed_at or now
        if not gone and self.fleet.silent(attempt, nodes) and now - self._failed_at < REPORTS_SECONDS:
            return None  # the first to speak may be the echo of one that has not spoken yet
        return self._lose(attempt, gone)

    def _lose(self, attempt: int, gone: str | None) -> Outcome | None:
        cause = root_cause(self.fleet.failures.get(attempt, ()))
        earlier = self.control.lost
        lost = account_for(earlier, attempt, self._checkpoints(), cause, blameless=gone is not None)
        why = f"{gone} left the group" if gone else f"workers failed, {cause[1].message if cause else 'none said why'}"
        print(f"attempt {attempt} is lost: {why}", flush=True)
        self._failed_at = 0.0
        reason = failed_for_good(earlier, lost)
        self._order(waiting_since=time.time(), lost=lost)
        return None if reason is None else self.outcome("failed", reason, lost)

    def _open_next(self, now: float, save: bool = False) -> Outcome | None:
        if self.control.check is not None:
            return self._conclude(self.control.check, now, save)
        nodes = self.fleet.candidates(set(self._members) - set(self.control.unhealthy), self.run.nodes)
        if nodes is not None:
            self._take_in(nodes, now, save)
        return None

    def _take_in(self, nodes: tuple[str, ...], now: float, save: bool = False) -> None:
        """Open an attempt on these nodes, or have them checked first where one of them never was."""
        new = tuple(node for node in nodes if node not in self.control.verified)
        if not new or not self.run.limits.verify_minutes:
            self._open(nodes, save)
            return
        # A job that runs is not interrupted for a check: its new nodes are checked among themselves.
        works = self.control.attempt > 0 and self.control.waiting_since is None
        number = self.control.checks + 1
        check = Check(number=number, nodes=new if works else nodes, ordered=now)
        self._order(check=check, checks=number, save=False)  # what still runs on them has lost its peers
        print(f"check {number} of {', '.join(check.nodes)}", flush=True)

    def _conclude(self, check: Check, now: float, save: bool) -> Outcome | None:
        """What a check has come to: an attempt is opened, or another check ordered, or nodes are waited for."""
        if gone := self.fleet.gone(check.nodes, self._members):
            print(f"check {check.number} is void: {gone} left the group", flush=True)
            self._order(check=None)
            return None
        unhealthy, verified = self.control.unhealthy, self.control.verified
        found = self.checks.concluded(check, self.run, self._members, len(unhealthy), now)
        if found is None:
            return None
        print(f"check {check.number} {found.verdict}: {found.reason}", flush=True)
        for node in found.unhealthy:
            self.groups.mark_unhealthy(node)
        healthy = check.nodes if found.verdict == "passed" else ()
        self._order(check=None, verified=(*verified, *healthy), unhealthy=(*unhealthy, *found.unhealthy))
        if found.verdict == "failed":
            return self.outcome("failed", f"verification of the nodes: {found.reason}")
        return self._open_next(now, save)

    def _why(self) -> str:
        """What the nodes' last check came to, where that kept the job from its start."""
        last = self.checks.last
        return "" if last is None or last.verdict == "passed" else f"; verification of the nodes: {last.reason}"

    def _open(self, nodes: tuple[str, ...], save: bool = False) -> None:
        self._order(attempt=self.control.attempt + 1, nodes=nodes, waiting_since=None, save=save)
        print(f"attempt {self.control.attempt} on {', '.join(nodes)}", flush=True)

    def _waited_in_vain(self, now: float) -> Outcome | None:
        """Nodes that were lost and don't come back end the run: those that wait for them are billed."""
        since, minutes = self.control.waiting_since, self.run.limits.bring_up_minutes
        if since is None or now <= since + minutes * 60 or self.control.check is not None:
            return None
        ready = set(self._members) - set(self.control.unhealthy)
        if fewer := self.fleet.candidates(ready, len(self.control.nodes)):
            self._take_in(fewer, now)  # a growth came to nothing: what there was before goes on
            return None
        there = len(self.fleet.ready(self._members))
        lost = f"{minutes:g} minutes after attempt {self.control.attempt} was lost"
        text = f"{there} of {self.run.nodes} nodes were ready {lost}{self._why()}"
        return self.outcome("failed", text, self.control.lost)

    def _end_surplus(self, now: float) -> None:
        """Nodes that no attempt has taken in when a bring-up's time is over: who launched them may be dead."""
        spare = set(self._members) - set(self.control.nodes)
        self._spare_since = {node: self._spare_since.get(node, now) for node in spare}
        for node, since in self._spare_since.items():
            if now > since + self.run.limits.bring_up_minutes * 60 and node not in self._sent_away:
                print(f"{node} is in no attempt: it goes", flush=True)
                try:
                    self.groups.remove(node)
                    self._sent_away.add(node)
                except ClientError as error:  # it stays, but no look at the job is missed for it
                    print(f"{node} could not be ended: {error}", flush=True)

    def _checkpoints(self) -> list[str]:
        keys = list(self.data.keys(self.layout.checkpoints))
        # A user's job has marks of its own: any new object is progress.
        return keys if self.run.job.train is None else complete_checkpoints(keys, self.layout.checkpoints)

    def _verified(self) -> Outcome:
        """Every agent is done: look at what the job left before the nodes go."""
        if self.run.job.train is None:
            return self.outcome("succeeded", "every rank ended with exit code 0")
        found = self.data.find(f"{self.layout.results}results.json")
        if found is None:
            return self.outcome("failed", "every rank ended with exit code 0, but results.json is not in S3")
        try:
            results = Results.model_validate_json(found)
        except ValidationError as error:
            return self.outcome("failed", f"results.json is not what it should be: {error}")
        if not self._checkpoints():
            return self.outcome("failed", "every rank ended with exit code 0, but no complete checkpoint is in S3")
        return self.outcome("succeeded", f"{results.steps} steps, last loss {results.last_loss:.4f}")

    def outcome(self, state: str, reason: str, lost: LostAttempt | None = None) -> Outcome:
        return Outcome.model_validate(
            {
                "state": state,
                "reason": reason,
                "attempts": self.control.attempt,
                "ended": time.time(),
                "culprit": lost.culprit if lost else None,
                "failure": lost.failure if lost else None,
            }
        )

    def end(self, outcome: Outcome | None) -> None:
        """Say how it ended, if nobody has, then stop the agents and the bill. Safe to repeat."""
        if outcome is not None:
            self.data.write(self.layout.outcome, outcome.model_dump_json().encode())
            print(f"run {self.run.run} {outcome.state}: {outcome.reason}", flush=True)
        # What has been made since the last checkpoint is worth one more, unless the job itself is over.
        over = self.control.waiting_since is not None or (outcome is not None and outcome.state == "succeeded")
        self._order(stop=True, save=not over)
        self.groups.end()


class Controller:
    """Looks for the current run and supervises it; between runs it waits."""

    def __init__(self, node: Node, manifest: Manifest) -> None:
        self._node, self._manifest = node, manifest
        self._staging = Bucket(manifest.staging_bucket, node.region)
        self._data = Bucket(manifest.data_bucket, node.region)
        self._current: Supervision | None = None
        self._ended: str | None = None

    def step(self) -> None:
        found = self._staging.find(CURRENT_RUN)
        if found is None:
            return
        run = RunRecord.model_validate_json(found)
        if run.run == self._ended:
            return
        if self._current is None or self._current.run.run != run.run:
            self._current = Supervision(self._node, self._manifest, run)
            print(f"supervising run {run.run}: {run.nodes} nodes x {run.processes_per_node}", flush=True)
        self._current.run = run  # the launch may have grown it, or taken that back
        # The launch or `trainyard stop` may have ended it; or an earlier controller, cut before the group was at 0.
        over = self._data.find(RunLayout(run.run).outcome) is not None
        outcome = None if over else self._current.step()
        if over or outcome is not None:
            self._current.end(outcome)
            self._ended, self._current = run.run, None
