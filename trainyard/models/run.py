"""State of a run in S3: its record, the requests of the controller, and its outcome."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.models.decision import AttemptDecision
from trainyard.models.events import RankFailure
from trainyard.models.manifest import Archive, Job, Limits, Manifest

NO_RUN = "none"
# At the time limit the controller requests a checkpoint. Nodes drain for at most 10 minutes; the rest is a reserve.
TERMINATION_MARGIN_SECONDS = 30 * 60.0
NodeChange = Literal["none", "software", "instances"]
"""What a new run changes on existing nodes: nothing, their software by the playbook, or all instances."""


class RunRecord(StrictModel):
    """`run.json`: written by the launch. A later launch may change its size and deadlines.

    A copy in the staging bucket is the record of the current run.
    """

    run: str = Field(pattern="^[a-z0-9][a-z0-9-]{0,62}$", description="Run id.")
    created: float = Field(description="Unix time of the launch, seconds.")
    deadline: float = Field(
        description="Unix time at which the controller ends the run, seconds: time limit or end of its capacity."
    )
    manifest_digest: str = Field(
        pattern="^[0-9a-f]{64}$",
        description="SHA-256 of the manifest that was launched, without sizes and deadlines.",
    )
    deployed_digest: str | None = Field(
        None,
        description="SHA-256 of the deployed manifest, without sizes and deadlines, if the run has another job: that "
        "of `trainyard run`.",
    )
    node_digest: str = Field("", description="SHA-256 of what the node playbook reads of that manifest.")
    instance_digest: str = Field("", description="SHA-256 of the settings of that manifest that new instances adopt.")
    previous_run: str | None = Field(
        None, description="Run whose nodes this run uses; null: all of its nodes were launched for it."
    )
    healthy_nodes: tuple[str, ...] = Field(
        (), description="Nodes of the previous run that have passed its health check and need not pass it again."
    )
    images: dict[str, str] = Field(
        default_factory=dict,
        description="Worker group -> AMI id of its launch template at the last launch of this run.",
    )
    nodes: int = Field(gt=0, description="Number of nodes of the job.")
    spares: int = Field(0, ge=0, description="Number of spare nodes in the worker groups.")
    processes_per_node: int = Field(gt=0, description="Processes on each node.")
    job: Job = Field(description="The job as it was launched, its container image by digest.")
    limits: Limits = Field(description="Deadlines of the run.")
    requirements: Archive | None = Field(
        None,
        description="Lock of the requirements of a custom job (RequirementsLock), whose wheels nodes install; null: "
        "the job has none, or nodes resolve them.",
    )
    reservations: tuple[str, ...] = Field(
        (), description="Capacity reservations that the controller extends with the lease and cancels with the run."
    )
    block_reservation_ids: tuple[str, ...] = Field(
        (), description="Ids of the reservations of the Capacity Blocks of its nodes. The controller reads their end."
    )
    scheduled_start: float | None = Field(
        None, description="Unix time at which AWS starts the nodes, seconds; null: the launch started them."
    )
    trigger: str = Field(
        NO_RUN, description="Trigger of the Pulumi resource that launched the run: another value launches a new run."
    )
    again: str = Field("", description="Value of launch.again at the launch: another value launches a new run.")

    @property
    def start(self) -> float:
        """Unix time from which the deadlines count: the scheduled start, or the launch."""
        return self.created if self.scheduled_start is None else self.scheduled_start

    def matches(self, manifest: Manifest) -> bool:
        """Return whether the run continues with this manifest: its job is that of the run, or that of its launch."""
        return manifest.digest() in (self.manifest_digest, self.deployed_digest)

    def lease_end(self, now: float) -> float:
        """Unix time at which a lease that is created or renewed at `now` ends: at most the deadline of the run.

        It never ends before the scheduled start: nodes that AWS starts then would have no lease.
        """
        return min(max(now, self.start) + self.limits.lease_minutes * 60, self.deadline)

    @property
    def termination_time(self) -> float:
        """Unix time at which EventBridge Scheduler terminates the workers, seconds: after the end of the run."""
        return self.start + self.limits.time_limit_minutes * 60 + TERMINATION_MARGIN_SECONDS

    @property
    def limited_by_capacity(self) -> bool:
        """Whether the run's capacity ends before its time limit."""
        return self.deadline < self.start + self.limits.time_limit_minutes * 60


def find_node_change(run: RunRecord, manifest: Manifest, container: str | None = None) -> NodeChange:
    """Return what a new run of this manifest needs on the nodes of an earlier run.

    `container`: image of the new run by digest; None: it has none, or its tag is not resolved yet.
    """
    if run.instance_digest != manifest.instance_digest():
        return "instances"
    is_same_image = container in (None, run.job.container)
    return "none" if is_same_image and run.node_digest == manifest.node_digest() else "software"


def compute_run_deadline(start: float, limits: Limits, capacity_end_time: float | None) -> float:
    """Unix time by which a run that starts at `start` ends: its time limit, or the end of its capacity."""
    time_limit = start + limits.time_limit_minutes * 60
    return time_limit if capacity_end_time is None else min(time_limit, capacity_end_time)


def latest_termination_time(now: float, limits: Limits, capacity_start_time: float | None) -> float:
    """Unix time at which EventBridge Scheduler terminates the workers of a run that a launch prepares at `now`."""
    minutes = limits.startup_timeout_minutes + limits.capacity_wait_minutes + limits.time_limit_minutes
    return max(now, capacity_start_time or 0.0) + minutes * 60 + TERMINATION_MARGIN_SECONDS


class Master(StrictModel):
    """The master of torchrun's static rendezvous: the torchrun of node rank 0 serves its store."""

    address: str = Field(description="Private address of the node with node rank 0.")
    port: int = Field(gt=0, lt=65536, description="TCP port of the store on that node, different for each request.")


class HealthCheckRequest(StrictModel):
    """A health check that nodes must pass before an attempt uses them. Its rendezvous id is `<run>-check-<number>`."""

    number: int = Field(gt=0, description="Number of the health check in its run; attempts are numbered separately.")
    nodes: tuple[str, ...] = Field(min_length=1, description="Instances to check, in the order of their node ranks.")
    master: Master = Field(description="Master of the rendezvous of these nodes.")
    requested_at: float = Field(description="Unix time of the request, seconds.")


class NodeRepair(StrictModel):
    """A repair of a node by its agent: no attempt uses the node before it has reported that it is ready again."""

    number: int = Field(gt=0, description="Attempt after which the repair was requested.")
    action: Literal["reset", "reboot"] = Field(description="Reset of all GPUs, or reboot of the node.")
    boot: str = Field(description="Number of the boot during which it was requested: a later boot follows a reboot.")
    requested_at: float = Field(description="Unix time of the request, seconds.")


class Control(StrictModel):
    """`control.json`: the requests of the controller, and the state that it needs after a restart."""

    attempt: int = Field(0, ge=0, description="Current attempt; 0 before the first.")
    nodes: tuple[str, ...] = Field((), description="Instances of the attempt, in the order of their node ranks.")
    master: Master | None = Field(None, description="Master of the attempt's rendezvous; null before the first.")
    stop: bool = Field(False, description="Agents stop their workers and start no more.")
    started: bool = Field(False, description="Whether all workers of some attempt were up.")
    waiting_since: float | None = Field(
        None,
        description="Unix time since which the controller waits for nodes for the next attempt; null while an attempt "
        "runs.",
    )
    save_checkpoint: bool = Field(
        False, description="Agents request a checkpoint from ranks that still run before they stop them."
    )
    checkpoint_requests: int = Field(
        0,
        ge=0,
        description="Number of checkpoints that the controller has requested because the owner of an interruptible "
        "reservation reclaims instances. The attempt continues after each.",
    )
    aborted_attempt: int = Field(
        0, ge=0, description="Attempt that has failed on a node: the other nodes kill its ranks, which may hang."
    )
    decisions: tuple[AttemptDecision, ...] = Field(
        (), description="Decisions on the attempts that failed since the last progress, oldest first."
    )
    newest_checkpoint: str = Field(
        "", description="Newest complete checkpoint at the last decision; of a custom job: SHA-256 of all keys."
    )
    last_passed_check: int = Field(0, ge=0, description="Attempt before which all of its nodes passed a health check.")
    repairs: dict[str, NodeRepair] = Field(
        default_factory=dict, description="Instance -> the repair that its agent must do now."
    )
    failed_startups: dict[str, str] = Field(
        default_factory=dict, description="Instance whose startup failed and that was replaced -> message."
    )
    checked_slow_nodes: tuple[str, ...] = Field(
        (), description="Instances of slow ranks for which the health check of all nodes was repeated."
    )
    repaired_nodes: tuple[str, ...] = Field((), description="Instances that had a repair in this run.")
    health_check: HealthCheckRequest | None = Field(None, description="The health check that nodes must run now.")
    health_check_count: int = Field(0, ge=0, description="Number of health checks requested so far.")
    healthy_nodes: tuple[str, ...] = Field((), description="Instances that passed a health check.")
    unhealthy_nodes: tuple[str, ...] = Field(
        (), description="Instances marked unhealthy in their group: no attempt uses them."
    )
    deadline: float | None = Field(
        None,
        description="Unix time that replaces the deadline of the run's record: the controller has read another end of "
        "its Capacity Block, which was extended; null: the record's.",
    )

    @property
    def latest_decision(self) -> AttemptDecision | None:
        """The decision on the last attempt that failed since the last progress, if any."""
        return self.decisions[-1] if self.decisions else None

    def find_spares(self, members: Iterable[str], count: int) -> list[str]:
        """Return at most `count` members that are spare nodes: outside the attempt, those that passed a check first."""
        outside = set(members) - set(self.nodes) - set(self.unhealthy_nodes)
        return sorted(outside, key=lambda node: (node not in self.healthy_nodes, node))[:count]

    def first_rank(self, node: str, processes_per_node: int) -> int:
        """Return the global rank of a node's first process in the attempt."""
        return self.nodes.index(node) * processes_per_node


class Outcome(StrictModel):
    """`outcome.json`: the result of a run, written once when it has ended."""

    state: Literal["succeeded", "failed", "stopped"] = Field(description="Final state of the run.")
    reason: str = Field(description="Reason, in one sentence.")
    attempts: int = Field(ge=0, description="Number of attempts.")
    ended_at: float = Field(description="Unix time, seconds.")
    failed_node: str | None = Field(None, description="Instance of the rank whose failure ended the run.")
    failure: RankFailure | None = Field(None, description="Failure of that rank.")
    keeps_reservations: bool = Field(
        False, description="Whether a new run uses the capacity reservations: the controller does not cancel them."
    )
    nodes_kept_until: float | None = Field(
        None,
        description="Unix time until which the nodes are kept for another run, which then uses them; null: they are "
        "terminated at the end of the run.",
    )
    results_locked_until: float | None = Field(
        None,
        description="Unix time until which S3 Object Lock keeps the results, seconds; null: they are not locked.",
    )
    results_lock_error: str | None = Field(
        None, description="Why results are not locked that storage.lock_results_days locks; null: no error."
    )
    launch_failed: bool = Field(
        False,
        description="Whether the run failed before the job started, or its replacement was not launched: the next "
        "`pulumi up` launches again.",
    )

    def keeps_nodes(self, now: float) -> bool:
        """Return whether the nodes are kept for another run at `now`, Unix time in seconds."""
        return self.nodes_kept_until is not None and now < self.nodes_kept_until

    def describe(self) -> str:
        """Return state, reason and the traceback of the failed rank, if any, as lines for people."""
        trace = self.failure.traceback.rstrip() if self.failure else ""
        return f"the job {self.state}: {self.reason}" + (f"\n{trace}" if trace else "")


def launch_trigger(run: RunRecord | None, outcome: Outcome | None) -> str:
    """Return the trigger of the Pulumi resource that launches the job. `run`: the run that was launched last, if any.

    It is that of the run, so that nothing is launched again, unless the state of Pulumi does not contain the run: its
    launch failed, or the launch that stopped it to replace it has created no run. A failed launch of `trainyard run` is
    not repeated: Pulumi did not request it.
    """
    if run is None:
        return NO_RUN
    has_failed = outcome is not None and outcome.launch_failed and run.deployed_digest is None
    is_replaced = outcome is not None and outcome.keeps_reservations
    return run.run if has_failed or is_replaced else run.trigger


class LaunchResult(StrictModel):
    """Result of a launch: its last line on stdout, which Pulumi keeps as an output."""

    run: str = Field(description="Run id.")
    state: Literal["started", "launched", "scheduled"] = Field(
        "started",
        description="started: the job runs. launched: the nodes are launched, and the controller starts the job when "
        "they are ready (launch.wait). scheduled: AWS starts the nodes at scheduled_start, and the controller starts "
        "the job.",
    )
    scheduled_start: float | None = Field(
        None, description="Unix time at which AWS starts the nodes, seconds; null: they have started."
    )
    nodes: tuple[str, ...] = Field(description="Instance ids; null while the run is scheduled.")
    data_uri: str | None = Field(description="S3 URI of the data; null: the job reads no data.")
    run_uri: str = Field(description="S3 URI prefix of all objects of the run.")
    phases: dict[str, float] = Field(description="Phase of the launch -> seconds.")
