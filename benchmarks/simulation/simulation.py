"""A run of the unmodified controller on simulated time, and what became of its time and its nodes."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

from botocore.exceptions import BotoCoreError, ClientError

from benchmarks.simulation.account import GROUP, REGION, Flaws, Host, SimulatedAccount
from benchmarks.simulation.faults import Fault
from benchmarks.simulation.job import SimulatedJob
from benchmarks.simulation.ledger import Ledger, Use
from benchmarks.simulation.nodes import GROUP_NAME, SimulatedNodes
from benchmarks.simulation.timeline import EPOCH, Timeline
from benchmarks.simulation.times import Times
from tests.manifests import MANIFEST
from trainyard.models.layout import RunLayout
from trainyard.models.manifest import Limits, Manifest, Subnet, WorkerGroup
from trainyard.models.run import Outcome, RunRecord
from trainyard.node.controller.lease import RENEWALS_PER_LEASE
from trainyard.node.controller.run_controller import RunController
from trainyard.node.identity import Node

RUN = "simulated"
INSTANCE_TYPE = "p5.48xlarge"
PROCESSES = 8
# The controller polls every second. The simulation calls it after each event, and at least this often: while all nodes
# train, it only renews the lease; after an interruption its deadlines of some seconds are due at first.
LEASE_MINUTES = 240.0
QUIET_POLL_SECONDS = LEASE_MINUTES * 60 / RENEWALS_PER_LEASE
POLL_SECONDS = ((60.0, 5.0), (float("inf"), 30.0))  # seconds since the last event -> seconds between two calls
MAXIMUM_DELAY_SECONDS = 45.0  # of a heartbeat: longer than a node may be silent without a second sign
TERMINATION_SECONDS = 3600.0
_MAXIMUM_STEPS = 20  # of the controller in one moment


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is simulated.

    `spares`: spare nodes. `hosts`: names of the servers of AWS, those of the launch first. `reserve_hosts`: further
    servers. `late_heartbeats`: share of heartbeats that arrive up to MAXIMUM_DELAY_SECONDS late. `poll_seconds`: as
    POLL_SECONDS, while all nodes train.
    """

    name: str
    nodes: int
    seconds: float
    faults: Sequence[Fault] = ()
    hosts: tuple[str, ...] = ()
    reserve_hosts: int = 64
    spares: int = 0
    seed: int = 0
    flaws: Flaws = field(default_factory=Flaws)
    poll_seconds: float = QUIET_POLL_SECONDS
    late_heartbeats: float = 0.0


@dataclass(frozen=True)
class Result:
    """Result of a simulation. `causes`: cause -> faults that hit a node of the run."""

    outcome: Outcome | None
    ledger: Ledger
    causes: Counter[str]
    attempts: int
    replaced: int
    false_replacements: tuple[str, ...]
    leaked: tuple[str, ...]
    billed_hours: float
    waits_for_capacity: int
    steps: int

    @property
    def goodput(self) -> float:
        """Share of the time in which the job made steps that were not repeated."""
        return self.ledger.share("training")


class Simulation:
    """One scenario."""

    def __init__(self, scenario: Scenario, times: Times | None = None) -> None:
        self._scenario, self.times = scenario, times or Times()
        self.timeline, self.ledger = Timeline(), Ledger()
        self._random = random.Random(scenario.seed)
        total = scenario.nodes + scenario.spares + scenario.reserve_hosts
        unnamed = (f"host-{number}" for number in range(max(total - len(scenario.hosts), 0)))
        self.account = SimulatedAccount(self.timeline, self.times, [*scenario.hosts, *unnamed], scenario.flaws)
        layout = RunLayout(RUN)
        self.job = SimulatedJob(self.timeline, self.times, self.account.data, layout, self.ledger, scenario.nodes)
        delay = self._late_seconds if scenario.late_heartbeats else None
        self.nodes = SimulatedNodes(self.timeline, self.times, self.account, self.job, RUN, PROCESSES, delay)
        manifest = create_manifest(scenario)
        self.controller = RunController(
            HEAD, manifest, create_record(scenario, manifest), self.account, self.nodes, self.timeline
        )
        self._causes: Counter[str] = Counter()
        self._changed_at, self._steps = 0.0, 0
        self.timeline.on_advance = self._count

    def run(self) -> Result:
        """Simulate the scenario, and end the run."""
        for fault in self._scenario.faults:
            self.timeline.schedule(fault.start, partial(self._start_fault, fault))
        self.account.set_desired_capacity(GROUP, self._scenario.nodes + self._scenario.spares)
        outcome = self._control()
        ledger = deepcopy(self.ledger)  # the nodes save a last checkpoint when they leave
        self._end(outcome)
        account, control = self.account, self.controller.state.control
        return Result(
            outcome=outcome,
            ledger=ledger,
            causes=self._causes,
            attempts=control.attempt,
            replaced=len(account.replaced),
            false_replacements=tuple(account.false_replacements),
            leaked=tuple(each.id for each in account.running()),
            billed_hours=account.billed_seconds() / 3600,
            waits_for_capacity=account.waits_for_capacity,
            steps=self._steps,
        )

    def _control(self) -> Outcome | None:
        """Call the controller until the end of the scenario; return the outcome if it ends the run before."""
        end, stepped_at = self._scenario.seconds, float("-inf")
        while self.timeline.now < end:
            assert self.timeline.time() <= self.account.lease_end, "the lease has expired"
            if self.nodes.is_changed or self.timeline.now >= stepped_at + self._poll_seconds():
                if outcome := self._step_until_settled():
                    return outcome
                stepped_at = self.timeline.now
            self.timeline.advance(min(stepped_at + self._poll_seconds(), end))
        return None

    def _step_until_settled(self) -> Outcome | None:
        for _ in range(_MAXIMUM_STEPS):
            if self.nodes.is_changed:
                self._changed_at = self.timeline.now
            self.nodes.is_changed = False
            before = self.controller.state.control
            if outcome := self._step():
                return outcome
            if self.controller.state.control is before and not self.nodes.is_changed:
                return None
        raise AssertionError(f"the controller changes its requests {_MAXIMUM_STEPS} times in one moment")

    def _step(self) -> Outcome | None:
        """A step of the controller. After an error it renews the lease, as Controller.step does."""
        self._steps += 1
        try:
            return self.controller.step()
        except (BotoCoreError, ClientError):
            self.controller.lease.renew_if_due(self.timeline.time())
            return None

    def _poll_seconds(self) -> float:
        if self.nodes.phase == "training" and self.controller.state.control.waiting_since is None:
            return self._scenario.poll_seconds
        elapsed = self.timeline.now - self._changed_at
        return next(seconds for limit, seconds in POLL_SECONDS if elapsed < limit)

    def _start_fault(self, fault: Fault) -> None:
        host = self.account.hosts[fault.host] if fault.host is not None else self._random_host()
        if host is None:
            return
        instance = self.account.find_instance(host)
        if instance is not None and instance.id in self.controller.state.control.nodes:
            self._causes[fault.cause] += 1
        self.account.add_fault(host, fault)
        self.nodes.apply_fault(host, fault)
        if fault.end != float("inf"):
            self.timeline.schedule(fault.end - fault.start, lambda: self.nodes.end_fault(host, fault))

    def _random_host(self) -> Host | None:
        nodes = self.controller.state.control.nodes
        return self.account.instances[self._random.choice(nodes)].host if nodes else None

    def _late_seconds(self) -> float:
        is_late = self._random.random() < self._scenario.late_heartbeats
        return self._random.uniform(0.0, MAXIMUM_DELAY_SECONDS) if is_late else 0.0

    def _count(self, seconds: float) -> None:
        self.ledger.add(self._current_use(), seconds)

    def _current_use(self) -> Use:
        """Return for what the time from now on is used."""
        control, phase = self.controller.state.control, self.nodes.phase
        if phase == "training":
            return "training"
        if control.waiting_since is not None or control.attempt == 0:
            if control.health_check is not None:
                return "health check"
            if control.repairs:
                return "repair"
            return "startup" if control.attempt == 0 else "replacement"
        if phase in ("stopped", "aborting") or (phase == "none" and control.aborted_attempt == control.attempt):
            return "detection"
        return "reload" if phase == "up" else "restart"

    def _end(self, outcome: Outcome | None) -> None:
        """End the run as the controller does, and wait until its instances are terminated."""
        stopped = Outcome(state="stopped", reason="the end of the scenario", attempts=1, ended_at=self.timeline.time())
        self.timeline.on_advance = lambda _: None
        self.controller.write_outcome(outcome or stopped)
        self.controller.end_run(outcome or stopped)
        end = self.timeline.now + TERMINATION_SECONDS
        while self.timeline.now < end:
            self.timeline.advance(end)


HEAD = Node(role="head", instance="i-head", address="10.0.0.2", boot="0001", region=REGION, manifest_uri="", bundle="")


def create_manifest(scenario: Scenario) -> Manifest:
    """Return the manifest of a cluster of GPU nodes with the default limits, and time for the whole scenario."""
    group = WorkerGroup(
        name=GROUP_NAME,
        autoscaling_group=GROUP,
        lifecycle_hook="leave",
        instance_type=INSTANCE_TYPE,
        nodes=scenario.nodes + scenario.spares,
        max_size=2 * scenario.nodes + scenario.spares,
        subnets=(Subnet(id="subnet-1", zone="us-east-1a"),),
        processes_per_node=PROCESSES,
        gpus=PROCESSES,
        efa_interfaces=32,
    )
    limits = Limits(
        startup_timeout_minutes=45.0,
        lease_minutes=LEASE_MINUTES,
        time_limit_minutes=scenario.seconds / 60 + 60,
        health_check_timeout_minutes=3.0,
        max_startup_replacements=2,
    )
    changes = {"region": REGION, "groups": (group,), "spares": scenario.spares, "limits": limits}
    return MANIFEST.model_copy(update=changes)


def create_record(scenario: Scenario, manifest: Manifest) -> RunRecord:
    """Return the record of the run."""
    return RunRecord(
        run=RUN,
        created=EPOCH,
        deadline=EPOCH + manifest.limits.time_limit_minutes * 60,
        manifest_digest=manifest.digest(),
        nodes=scenario.nodes,
        spares=scenario.spares,
        processes_per_node=PROCESSES,
        job=manifest.job,
        limits=manifest.limits,
    )


def hosts_of(faults: Iterable[Fault]) -> tuple[str, ...]:
    """Return the names of the hosts with faults."""
    return tuple(dict.fromkeys(fault.host for fault in faults if fault.host is not None))
