"""Simulated nodes: their agents, the ranks of the job on them, and what their faults look like.

The agents follow the requests of the controller as trainyard/node/agent/agent.py does. Messages are model objects whose
values are not validated again. An agent has one heartbeat, whose content and time of arrival change when the controller
reads it: a simulated month of 2,048 nodes has a billion heartbeats.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from benchmarks.simulation.account import Host, Instance, SimulatedAccount
from benchmarks.simulation.faults import Fault
from benchmarks.simulation.job import SimulatedJob
from benchmarks.simulation.timeline import Timeline
from benchmarks.simulation.times import Times
from tests.manifests import HEALTHY_MEASUREMENTS
from trainyard.models.connection import Heartbeat
from trainyard.models.events import AgentEvent, HealthCheckEvent, NodeEvent, RankFailure
from trainyard.models.failure_messages import HUNG_WITH_PEERS, PEER_LOST
from trainyard.models.health_check import NodeFault
from trainyard.models.node_health import HealthFinding, NodeHealth
from trainyard.models.rank_progress import RankProgress
from trainyard.models.run import Control, HealthCheckRequest, NodeRepair
from trainyard.node.controller.agent_server import ReceivedHeartbeat

GROUP_NAME = "workers"
HEALTHY = HEALTHY_MEASUREMENTS.model_copy(update={"gpu_names": ("NVIDIA H100 80GB HBM3",), "efa_devices": 32})
_REPAIRED_BY = {"reset": ("reset",), "reboot": ("reset", "reboot")}


@dataclass
class Agent:
    """The agent of one instance. `attempt`: the attempt whose ranks run on the node; 0 without any.

    `age`: seconds since its last heartbeat while it is alive.
    """

    instance: Instance
    address: str
    received: ReceivedHeartbeat
    age: float
    boot: int = 1
    is_alive: bool = True
    attempt: int = 0
    repair: int = 0
    health: NodeHealth = field(default_factory=NodeHealth)

    def set_heartbeat(self, **fields: object) -> None:
        """Change the content of the heartbeat."""
        self.received.heartbeat.__dict__.update(fields)


class SimulatedNodes:
    """The connections of all agents, as the controller uses them."""

    def __init__(
        self,
        timeline: Timeline,
        times: Times,
        account: SimulatedAccount,
        job: SimulatedJob,
        run: str,
        processes: int,
        delay: Callable[[], float] | None = None,
    ) -> None:
        """`delay`: seconds by which a heartbeat arrives late; None: never."""
        self.agents: dict[str, Agent] = {}
        self.control = Control()
        self.phase = "none"  # of the attempt: starting, up, training, stopped, aborting, none
        self.is_changed = True  # whether the controller has something new to read
        self._timeline, self._times, self._account, self._job = timeline, times, account, job
        self._run, self._processes, self._delay = run, processes, delay
        self._number = self._check = 0  # of the newest attempt and health check that agents know
        self._events: list[NodeEvent] = []
        self._connected: frozenset[str] | None = None
        self._received: dict[str, ReceivedHeartbeat] = {}
        self._ranks: list[RankProgress] = []  # of all nodes of the attempt
        self._sequences = count(1)
        self._is_following = False
        account.on_running = self._boot
        account.on_terminating = self._drain

    # The interface of the controller

    def take_events(self) -> list[NodeEvent]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events

    def heartbeats(self) -> dict[str, ReceivedHeartbeat]:
        """Return instance -> its newest heartbeat."""
        now = self._timeline.monotonic()
        if self.phase == "training":
            self._ranks[:] = self._job.progress()
        for agent in self.agents.values():
            if agent.is_alive:
                content = agent.received.__dict__
                late = self._delay() if self._delay is not None else 0.0
                content["received_at"] = max(content["received_at"], now - agent.age - late)
        return dict(self._received)

    def connected_nodes(self) -> frozenset[str]:
        """Return the instances whose agents are connected."""
        if self._connected is None:
            self._connected = frozenset(name for name, agent in self.agents.items() if agent.is_alive)
        return self._connected

    def publish(self, run: str, control: Control) -> None:
        """Let the agents follow the requests a moment later."""
        self.control = control
        self._follow_soon()

    # Instances

    def _boot(self, instance: Instance) -> None:
        self._timeline.schedule(self._times.startup.seconds, lambda: self._connect(instance))

    def _connect(self, instance: Instance) -> None:
        """The node of a new instance is ready, unless the instance is lost."""
        if instance.state != "InService" or instance.silent_since is not None:
            return
        heartbeat = Heartbeat.model_construct(
            kind="heartbeat",
            instance=instance.id,
            boot="0001",
            sequence=next(self._sequences),
            run=self._run,
            attempt=0,
            ranks=(),
            health=NodeHealth(),
        )
        number = len(self._account.instances)
        address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        received = ReceivedHeartbeat(heartbeat, self._timeline.monotonic())
        agent = Agent(instance, address, received, number * 0.37 % self._times.heartbeat.seconds)
        self.agents[instance.id], self._received[instance.id], self._connected = agent, received, None
        self._report(agent, "ready", 0)
        self._follow_soon()

    def _drain(self, instance: Instance) -> float | None:
        """An instance leaves its group: its agent saves a checkpoint if it can, and reports the end of its ranks."""
        agent = self.agents.get(instance.id)
        if agent is None or not agent.is_alive:
            self._timeline.schedule(0.0, lambda: self._remove(instance.id))
            return None
        seconds = self._times.kill.seconds
        if agent.attempt and self.phase == "training":
            self._job.save()
            seconds = self._times.save.seconds
        self._timeline.schedule(seconds, lambda: self._complete_drain(agent))
        return seconds

    def _complete_drain(self, agent: Agent) -> None:
        if agent.is_alive and agent.instance.id in self.agents:
            self._report(agent, "drained", self._number)
            if agent.attempt:
                self._stop_training()
            self._remove(agent.instance.id)

    def _remove(self, instance: str) -> None:
        self.heartbeats()  # the last that it has sent
        self.agents.pop(instance, None)
        self._connected, self.is_changed = None, True

    # Faults

    def apply_fault(self, host: Host, fault: Fault) -> None:
        """A fault starts on the host: it affects the instance there, and the attempt if it runs."""
        instance = self._account.find_instance(host)
        if instance is None or not instance.is_member:
            return
        agent = self.agents.get(instance.id)
        if fault.kind.effect == "retired":
            self._account.retire(instance)
        elif fault.kind.effect == "lost":
            self._account.lose(instance)
            if agent is not None:
                self._silence(agent)
        elif agent is not None and agent.attempt and self.phase == "training":
            self._show(agent, fault)

    def _silence(self, agent: Agent) -> None:
        """A node does not respond any more. The first node has the store; a collective waits for other nodes."""
        self.heartbeats()  # the last that it has sent
        agent.set_heartbeat(ranks=tuple(self._ranks) if agent.attempt else ())
        agent.is_alive, self._connected, self.is_changed = False, None, True
        if not agent.attempt or self.phase == "aborting":
            return
        self._stop_training()
        if agent.instance.id == self.control.nodes[0]:
            self._after(self._times.crash_report.seconds, self._fail_peers)
        else:
            rank = self.control.first_rank(agent.instance.id, self._processes)
            self._after(self._times.hang_limit.seconds, lambda: self._end_hang(rank))

    def end_fault(self, host: Host, fault: Fault) -> None:
        """A fault ends by itself. A lost node that its group has not replaced yet boots again."""
        instance = self._account.find_instance(host)
        self._account.end_fault(host, fault)
        if instance is None or instance.silent_since is None or host.faults:
            return
        instance.silent_since = None
        if agent := self.agents.get(instance.id):
            self._reboot(agent)
        else:
            self._boot(instance)

    def _show(self, agent: Agent, fault: Fault) -> None:
        """Show a fault in the running attempt."""
        kind, limit = fault.kind, self._times.hang_limit.seconds
        if self.phase != "training":  # the first step hangs
            limit = self._times.first_step_limit.seconds
        if kind.finding is not None:
            finding = HealthFinding(
                rule=kind.finding.name,
                action=kind.finding.action,
                device="GPU 3",
                text=kind.finding.signal[:100],
                time=self._timeline.time(),
            )
            agent.health = agent.health.merged([finding])
            agent.set_heartbeat(health=agent.health)
        self._stop_training()
        rank = self.control.first_rank(agent.instance.id, self._processes) + 3
        if kind.effect == "crash":
            self._after(self._times.crash_report.seconds, lambda: self._fail(agent, rank, kind.message, exitcode=1))
        else:
            self._after(limit, lambda: self._end_hang(rank if kind.effect == "hang" else None))
        if kind.ended_by == "attempt":
            self._account.end_fault(agent.instance.host, fault)

    def _stop_training(self) -> None:
        if self.phase != "aborting":
            self.phase = "stopped"
        self._job.stop()
        self.is_changed = True

    def _fail(self, agent: Agent, rank: int, message: str, exitcode: int) -> None:
        if agent.is_alive and agent.attempt:
            failure = RankFailure(
                rank=rank,
                local_rank=rank % self._processes,
                time=self._timeline.time(),
                exitcode=exitcode,
                message=message,
                traceback="",
            )
            self._end_ranks(agent, (failure,))

    def _end_ranks(self, agent: Agent, failures: tuple[RankFailure, ...] = ()) -> None:
        number, agent.attempt = agent.attempt, 0
        agent.set_heartbeat(attempt=0, ranks=())
        self._report(agent, "workers_failed", number, failures)

    def _fail_peers(self) -> None:
        for agent in self._running_agents():
            rank = self.control.first_rank(agent.instance.id, self._processes)
            self._fail(agent, rank, f"{PEER_LOST}: the store does not respond", exitcode=1)

    def _end_hang(self, rank: int | None) -> None:
        """The watchdogs of the ranks end a hang: the lowest rank that responds reports what all wait for."""
        cause = "which all ranks have started:" if rank is None else "waiting for"
        text = (
            f"hang: ranks in nccl:all_reduce 17, {cause} rank {rank or 0} (host, local rank 3), in backward of step 5"
        )
        for position, agent in enumerate(self._running_agents()):
            first = self.control.first_rank(agent.instance.id, self._processes)
            message = f"{HUNG_WITH_PEERS}: rank 0 reports the cause" if position else text
            self._fail(agent, first, message, exitcode=75)

    # Requests of the controller

    def _follow_soon(self) -> None:
        if not self._is_following:
            self._is_following = True
            self._timeline.schedule(self._times.agent_reaction.seconds, self._follow)

    def _follow(self) -> None:
        """Follow the newest requests."""
        self._is_following = False
        control = self.control
        if control.stop:
            self._job.stop()
            self.phase = "none"
            return
        if self.phase not in ("none", "aborting") and self._is_superseded(control):
            self.phase = "aborting"
            self._job.stop()
            self._after(self._times.kill.seconds, self._end_attempt)
        check = control.health_check
        if check is not None and check.number > self._check and not set(check.nodes) & set(self._attempt_nodes()):
            self._start_check(check)
        if self.phase != "none":
            return
        for node, repair in control.repairs.items():
            agent = self.agents.get(node)
            if agent is not None and agent.is_alive and repair.number > agent.repair:
                self._start_repair(agent, repair)
        if control.attempt > self._number and control.waiting_since is None:
            self._start_attempt(control)

    def _is_superseded(self, control: Control) -> bool:
        check = control.health_check
        return (
            control.aborted_attempt >= self._number
            or control.attempt > self._number
            or (check is not None and check.number > self._check and set(check.nodes) & set(control.nodes) != set())
        )

    def _attempt_nodes(self) -> tuple[str, ...]:
        """Return the nodes on which ranks run."""
        return () if self.phase == "none" else tuple(agent.instance.id for agent in self._running_agents())

    def _end_attempt(self) -> None:
        """All ranks have been killed."""
        for agent in self._running_agents():
            self._end_ranks(agent)
        self.phase = "none"
        self._follow()

    def _start_attempt(self, control: Control) -> None:
        self._number, self.phase, self._ranks = control.attempt, "starting", []
        for node in control.nodes:
            if (agent := self.agents.get(node)) is not None and agent.is_alive:
                agent.attempt = control.attempt
                agent.set_heartbeat(attempt=control.attempt, ranks=self._ranks)
        self._after(self._times.restart.seconds, self._report_up)

    def _report_up(self) -> None:
        self.phase = "up"
        for agent in self._running_agents():
            self._report(agent, "workers_up", self._number)
        self._after(self._times.reload.seconds, self._take_first_step)

    def _take_first_step(self) -> None:
        """The first step shows the faults of the nodes. Without all nodes there is none."""
        if self.phase != "up":
            return
        running = self._running_agents()
        if len(running) < len(self.control.nodes):
            self._stop_training()
            return
        faulty = [
            (each, fault) for each in running for fault in each.instance.host.faults if fault.kind.effect != "lost"
        ]
        if faulty:
            self._show(*faulty[0])
            return
        self.phase = "training"
        self._job.start()

    def _start_check(self, request: HealthCheckRequest) -> None:
        """A health check ends when all nodes have reported; without a report, at its timeout."""
        self._check = request.number
        self._timeline.schedule(self._times.health_check.seconds, lambda: self._end_check(request))

    def _end_check(self, request: HealthCheckRequest) -> None:
        if self.control.health_check is None or self.control.health_check.number != request.number:
            return
        agents = [self.agents[node] for node in request.nodes if node in self.agents and self.agents[node].is_alive]
        if len(agents) < len(request.nodes):
            return  # the controller notices that a node has not reported
        faulty = [agent for agent in agents if any(fault.kind.fails_check for fault in agent.instance.host.faults)]
        for agent in faulty or agents:
            faults = (NodeFault(kind="crashed", text="a rank of the health check failed"),) if faulty else ()
            event = HealthCheckEvent.model_construct(
                **self._fields(agent, "health_check"),
                number=request.number,
                group=GROUP_NAME,
                measurements=HEALTHY,
                faults=faults,
                missing_peers=(),
                incomplete_stage=None,
            )
            self._events.append(event)
        self.is_changed = True

    def _start_repair(self, agent: Agent, repair: NodeRepair) -> None:
        agent.repair = repair.number
        if repair.action == "reset":
            self._timeline.schedule(self._times.reset.seconds, lambda: self._end_reset(agent, repair.number))
            return
        self.heartbeats()
        agent.is_alive, self._connected = False, None
        self._reboot(agent)

    def _end_reset(self, agent: Agent, number: int) -> None:
        if agent.is_alive and agent.instance.id in self.agents:
            self._end_faults(agent, "reset")
            self._report(agent, "repaired", number)

    def _reboot(self, agent: Agent) -> None:
        def boot() -> None:
            if agent.instance.id in self.agents and agent.instance.silent_since is None:
                agent.boot, agent.is_alive, agent.attempt, self._connected = agent.boot + 1, True, 0, None
                self._end_faults(agent, "reboot")
                agent.set_heartbeat(boot=f"{agent.boot:04d}", attempt=0, ranks=())
                self._report(agent, "ready", 0)

        self._timeline.schedule(self._times.reboot.seconds, boot)

    def _end_faults(self, agent: Agent, action: str) -> None:
        """A repair ends some faults, and the findings of all: those that remain are found again."""
        agent.health = NodeHealth()
        agent.set_heartbeat(health=agent.health)
        for fault in list(agent.instance.host.faults):
            if fault.kind.ended_by in _REPAIRED_BY[action]:
                self._account.end_fault(agent.instance.host, fault)

    # Messages

    def _running_agents(self) -> list[Agent]:
        agents = (self.agents.get(node) for node in self.control.nodes)
        return [each for each in agents if each is not None and each.is_alive and each.attempt == self._number]

    def _after(self, delay: float, action: Callable[[], None]) -> None:
        """Call `action` later if the attempt is still the same."""
        number = self._number
        self._timeline.schedule(delay, lambda: action() if self._number == number and self.phase != "none" else None)

    def _fields(self, agent: Agent, kind: str) -> dict[str, Any]:
        return {
            "kind": kind,
            "time": self._timeline.time(),
            "instance": agent.instance.id,
            "role": "worker",
            "boot": f"{agent.boot:04d}",
            "sequence": next(self._sequences),
            "run": self._run,
        }

    def _report(self, agent: Agent, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> None:
        fields: dict[str, Any] = {"attempt": attempt, "state": state, "address": agent.address, "failures": failures}
        self._events.append(AgentEvent.model_construct(**self._fields(agent, "agent"), **fields, health=agent.health))
        self.is_changed = True
