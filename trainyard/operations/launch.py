"""The launch: a run is minted, the dataset is there, the head is ready, N nodes start or none, the job has started.

Before it adds nodes it puts the lease on the groups: whoever dies from then on, AWS itself ends the workers. A run that
the manifest only wants on more nodes is grown: the new nodes join it at its next attempt, or go, and the old ones stay.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.manifest import Manifest
from trainyard.models.run import Control, LaunchResult, Outcome, RunRecord
from trainyard.operations import dataset, runs
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import LaunchError
from trainyard.operations.progress import Display
from trainyard.operations.run_record import minutes_of, moment, new_record, require_time, retimed
from trainyard.operations.signals import interruptible, undisturbed
from trainyard.operations.startup import Deadline, Nodes, wait_for_head
from trainyard.operations.worker_groups import Workers

END_BY_HAND = (
    "the lease or the controller ends them; to do it now: aws autoscaling terminate-instance-in-auto-scaling-group "
    "--should-decrement-desired-capacity --instance-id ID"
)


class Launch:
    """One launch: `go` decides what it is, a run of its own or the growth of the one on the cluster."""

    def __init__(self, cluster: Cluster, show: Display) -> None:
        self.cluster, self.show = cluster, show
        self.manifest: Manifest = cluster.manifest
        self.workers = Workers(self.manifest)
        self.phases: dict[str, float] = {}
        self.deadline = Deadline(self.manifest.limits.bring_up_minutes)
        self.record = new_record(self.manifest, time.time())

    def go(self, update: bool = False) -> LaunchResult:
        """Start the manifest's job, or give more nodes to the run on the cluster that only lacks these.

        With `update`, bring the cluster in line with a manifest that has changed: nothing is launched where its run is
        that already, and a run of another manifest is stopped first.
        Raises LaunchError, or InputError for what the user can mend; then nothing that it added runs.
        """
        current = self.cluster.current_run()
        if current is None:
            require_time(self.manifest, time.time())
            return self._alone()
        control, alive = self.cluster.control(current.run), self._alive(current)
        if control is not None and control.started and current.manifest == self.record.manifest:
            lacking = self._lacking(control)
            if alive and any(lacking.values()) and min(lacking.values()) >= 0:
                require_time(self.manifest, time.time())
                # A growth that was killed may have asked for more than it got.
                base = self._retimed(current).model_copy(update={"nodes": len(control.nodes)})
                return self._more_nodes(base, control, lacking)
            if update and (not any(lacking.values()) if alive else current.nodes == self.record.nodes):
                current = self._retimed(current) if alive else current
                self.show.line("run", f"{current.run} is what the manifest says: nothing to launch")
                return self._result(current.run, self.workers.members())
        require_time(self.manifest, time.time())  # before a run makes way for one that can't be
        if alive and not update:
            raise LaunchError(
                f"run {current.run} is still on the cluster; wait for it, or end it: trainyard stop --stack "
                f"{self.cluster.stack}"
            )
        if alive:
            self.show.line("run", f"{current.run} makes way for another launch")
            runs.stop(self.cluster)
            self.deadline = Deadline(self.manifest.limits.bring_up_minutes)
            self.record = new_record(self.manifest, time.time())
        self.deadline.wait("the end of the earlier run's nodes", lambda: not self.workers.members())
        return self._alone()

    def _alone(self) -> LaunchResult:
        return self._taking_back(self._start, self._close)

    def _more_nodes(self, current: RunRecord, control: Control, lacking: Mapping[str, int]) -> LaunchResult:
        return self._taking_back(lambda: self._grow(current, control, lacking), lambda reason: self._stay(current))

    def _lacking(self, control: Control) -> dict[str, int]:
        """Group -> nodes that the manifest wants there beyond those of the attempt; below 0 where it wants fewer.

        A node that was lost is in no group any more: it counts where nodes lack.
        """
        held = {name: set(members) & set(control.nodes) for name, members in self.workers.members_by_group().items()}
        lost = len(control.nodes) - sum(map(len, held.values()))
        found = {}
        for group in self.manifest.groups:
            lack = group.nodes - len(held.get(group.name, ()))
            found[group.name] = lack - min(max(lack, 0), lost)
            lost -= min(max(lack, 0), lost)
        found[group.name] -= lost
        return found

    def _alive(self, run: RunRecord) -> bool:
        # A launch that still waits for capacity has a run and no nodes yet.
        young = time.time() < run.created + run.limits.bring_up_minutes * 60
        return self.cluster.outcome(run.run) is None and (young or bool(self.workers.members()))

    def _retimed(self, run: RunRecord) -> RunRecord:
        """A live run with the manifest's deadlines, which the controller then holds."""
        changed = retimed(run, self.manifest)
        if changed != run:
            self._write(changed)
            self.show.line("run", f"{run.run} has new deadlines: it ends {minutes_of(changed)} after its launch")
            self._say_cut(changed)
        return changed

    def _say_cut(self, run: RunRecord) -> None:
        if run.cut_short:
            limit = f"{run.limits.time_limit_minutes:g} (job.time_limit_minutes)"
            text = f"its capacity ends at {moment(run.deadline)}: {minutes_of(run)} after the launch, not {limit}"
            self.show.line("time limit", text)

    def _taking_back(self, way: Callable[[], LaunchResult], undo: Callable[[str], None]) -> LaunchResult:
        """Go the way; whatever breaks on it, `undo` is told why, and what was added goes."""
        with interruptible():
            try:
                return way()
            except BaseException as error:
                reason = str(error) or type(error).__name__
                stuck: list[str] = []
                with undisturbed():
                    try:
                        undo(reason)
                    finally:
                        stuck = self.workers.take_back(self.show)
                if stuck:
                    reason += f". AWS would not end {', '.join(stuck)}, so they still run: {END_BY_HAND}"
                    raise LaunchError(reason) from None
                raise

    def _start(self) -> LaunchResult:
        """A run of its own."""
        with self._phase("dataset"):
            dataset.ensure(self.cluster, self.show)
        with self._phase("head"):
            wait_for_head(self.cluster, self.show, self.deadline)
        with self._phase("workers"):
            self._open_run()
            nodes = Nodes(self.cluster, self.show, self.deadline, self.record.run)
            nodes.expect(added := self._add({group.name: group.nodes for group in self.manifest.groups}))
        with self._phase("bring_up"):
            nodes.wait_for_job(self.record.nodes)
        self._say_started()
        control = self.cluster.control(self.record.run)
        # Not those that were added, where one of them was found unhealthy and replaced.
        return self._result(self.record.run, list(control.nodes) if control else added)

    def _grow(self, current: RunRecord, control: Control, lacking: Mapping[str, int]) -> LaunchResult:
        """More nodes for a run that goes on meanwhile: they are ready before it is interrupted for them."""
        members = self.workers.members()
        if absent := sorted(set(control.nodes) - set(members)):
            raise LaunchError(
                f"run {current.run} has lost {', '.join(absent)} and waits for others: it can't be given more now; try "
                f"again when it runs, or end it: trainyard stop --stack {self.cluster.stack}"
            )
        with self._phase("workers"):
            self.show.line("run", f"{current.run} grows from {current.nodes} to {self.record.nodes} nodes")
            self._end_spares(control, members)
            self.workers.put_lease(current.lease_end(time.time()))
            nodes = Nodes(self.cluster, self.show, self.deadline, current.run)
            nodes.expect(self._add(lacking))
        with self._phase("bring_up"):
            nodes.wait_for_agents()
            self._write(current.model_copy(update={"nodes": self.record.nodes}))
            nodes.wait_for_job(self.record.nodes, after=control.attempt)
        self._say_started()
        return self._result(current.run, self.workers.members())

    def _end_spares(self, control: Control, members: list[str]) -> None:
        """Nodes that an earlier launch left, which was killed: nobody knows how far they came."""
        spares = sorted(set(members) - set(control.nodes))
        for name in spares:
            self.workers.end(name, self.show)
        if spares:
            self.show.line("nodes", f"ended, as an earlier launch left them: {', '.join(spares)}")
            self.deadline.wait("their end", lambda: not set(spares) & set(self.workers.members()))

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

    def _write(self, record: RunRecord) -> None:
        content = record.model_dump_json().encode()
        self.cluster.data.write(RunLayout(record.run).record, content)
        assert self.cluster.staging is not None
        self.cluster.staging.write(CURRENT_RUN, content)

    def _open_run(self) -> None:
        """From here on the run exists: its record, and the lease that ends it whoever dies."""
        self._write(self.record)
        self.workers.put_lease(self.record.lease_end(time.time()))
        self.show.line("run", f"{self.record.run}, lease of {self.record.limits.lease_minutes:g} minutes")
        self._say_cut(self.record)

    def _add(self, wanted: Mapping[str, int]) -> list[str]:
        """`wanted`: group -> nodes."""
        what = [f"{wanted[group.name]} x {group.instance_type}" for group in self.manifest.groups if wanted[group.name]]
        self.show.detail("nodes", f"launching {', '.join(what)}")
        added = self.workers.add(wanted, self.record.run, self.show)
        self.show.line("nodes", f"{len(added)} of {sum(wanted.values())} launched: {', '.join(added)}")
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
