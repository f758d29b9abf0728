"""Runs with a controller and an emulated AWS account, as tests of the controller use them."""

from typing import Any

from tests.clusters import Cluster, event_fields
from tests.conftest import REGION
from tests.connections import AdjustableClock, FakeConnections
from trainyard.config.training import TrainerConfig
from trainyard.models.events import AgentEvent, PlaybookEvent, RankFailure
from trainyard.models.health_check import NodeFault
from trainyard.models.layout import RunLayout
from trainyard.models.metrics import Results
from trainyard.models.run import Control, Outcome, RunRecord
from trainyard.models.startup_failures import PLAYBOOK_RETRY_SECONDS
from trainyard.node.controller.account import Account
from trainyard.node.controller.attempts import (
    FAILURE_REPORT_TIMEOUT_SECONDS,
)
from trainyard.node.controller.liveness import SILENCE_SECONDS
from trainyard.node.controller.run_controller import RunController
from trainyard.node.identity import Node

FAILURE = RankFailure(rank=3, local_rank=1, time=1.0, exitcode=1, message="ValueError: bad", traceback="Traceback")


class Run:
    """A run with its controller and two nodes."""

    def __init__(self, cluster: Cluster, **record: Any) -> None:
        self.cluster = cluster
        self.nodes = cluster.launch_instances(2)
        self.record: RunRecord = cluster.create_run_record(**record)
        self.layout = RunLayout(self.record.run)
        self.start_controller()

    def start_controller(self) -> None:
        """Start the controller, or restart it."""
        self.node = Node(
            role="head",
            instance="i-head",
            address="127.77.9.2",
            boot="0001",
            region=REGION,
            manifest_uri="",
            bundle="",
        )
        self.connections, self.clock = FakeConnections(), AdjustableClock()
        self.controller = RunController(
            self.node, self.cluster.manifest, self.record, Account(REGION), self.connections, self.clock
        )

    def write_all_agent_events(self, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> None:
        for node in self.nodes:
            self.cluster.write_agent_event(self.record.run, node, state, attempt, failures)

    def step(self, state: str, attempt: int, failures: tuple[RankFailure, ...] = ()) -> Outcome | None:
        self.write_all_agent_events(state, attempt, failures)
        return self.controller.step()

    def step_with_members(self) -> Outcome | None:
        """A step of the controller that reads the members of the groups."""
        self.controller._members_at = None
        return self.controller.step()

    def step_until_loss(self) -> Outcome | None:
        """Steps after which a member that has left its group is lost: it is missing from two responses."""
        self.step_with_members()
        return self.step_with_members()

    def step_after_reports(self) -> Outcome | None:
        """A step after the time in which nodes report a failure, and are found to be silent."""
        self.clock.advance(max(FAILURE_REPORT_TIMEOUT_SECONDS, SILENCE_SECONDS) + 1)
        return self.controller.step()

    def send_heartbeats(self, *nodes: str) -> None:
        for node in nodes:
            self.connections.add_heartbeat(node, self.record.run, self.clock.monotonic())

    def control(self) -> Control | None:
        content = self.cluster.data.find(self.layout.control)
        return None if content is None else Control.model_validate_json(content)

    @property
    def published(self) -> Control:
        """The state that the controller has published."""
        control = self.control()
        assert control is not None
        return control

    def write_results(self) -> None:
        results = Results(
            run=self.record.run,
            steps=3,
            world_size=4,
            first_loss=5.0,
            last_loss=2.0,
            validation_loss=2.0,
            samples=5,
            tokens=10,
            seconds=1.0,
            figures=None,
            parameters=10,
            checkpoints=(),
            data="s3://d/",
            config=TrainerConfig(),
            code_sha256="0" * 64,
            versions={},
        )
        self.cluster.data.write(f"{self.layout.results}results.json", results.model_dump_json().encode())

    def write_checkpoint(self, step: int) -> None:
        self.cluster.data.write(f"{self.layout.checkpoints}step-{step:08d}/.metadata", b"x")


class StartingRun(Run):
    """A run whose nodes start."""

    def allow_replacements(self, count: int) -> None:
        """Let the controller replace this number of nodes."""
        limits = self.record.limits.model_copy(update={"max_startup_replacements": count})
        self.record = self.record.model_copy(update={"limits": limits})
        self.start_controller()

    def fail_startup(self, node: str, message: str = "no mirror", *, is_permanent: bool = False) -> None:
        for after in (0.0, 2 * PLAYBOOK_RETRY_SECONDS):
            fields = {**event_fields(node, "worker", after), "status": "failed", "message": message}
            event = PlaybookEvent.model_validate({**fields, "is_permanent": is_permanent})
            self.cluster.write_event(self.record.run, node, event)

    def replace(self, node: str) -> str:
        """Remove a node from its group, and launch another."""
        members = set(self.cluster.members())
        self.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
            InstanceId=node, ShouldDecrementDesiredCapacity=True
        )
        self.cluster.launch_instances(1)
        self.step_until_loss()
        return (set(self.cluster.members()) - members).pop()


class RunWithSpare(Run):
    """A run on two nodes with a third node as a spare. Health checks are on."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        limits = self.record.limits.model_copy(update={"health_check_timeout_minutes": 3.0, "smaller_sizes": (1,)})
        self.record = self.record.model_copy(update={"limits": limits, "spares": 1})
        self.nodes = [*self.nodes, *cluster.launch_instances(1)]
        self.start_controller()

    def pass_health_check(self) -> tuple[str, ...]:
        """Let the nodes of the requested health check pass it; return them."""
        request = self.published.health_check
        assert request is not None
        for node in request.nodes:
            self.cluster.write_health_check_event(self.record.run, node, request.number)
        self.controller.step()
        return request.nodes

    def fail_health_check(self, healthy: str = "") -> tuple[str, ...]:
        """Let the nodes of the requested health check fail it, and its repetition, except `healthy`; return them."""
        nodes: tuple[str, ...] = ()
        for _ in range(2):
            request = self.published.health_check
            assert request is not None
            nodes = request.nodes
            for node in nodes:
                fault = NodeFault(kind="hung", text="process 1 did not complete: multiply matrices")
                faults = () if node == healthy else (fault,)
                self.cluster.write_health_check_event(self.record.run, node, request.number, faults=faults)
            assert self.controller.step() is None
            assert self.controller.step() is None
        return nodes

    def lose_all_but_one(self) -> str:
        """Remove all nodes but the first of the attempt from their group; return that node."""
        remaining = self.published.nodes[0]
        for node in set(self.nodes) - {remaining}:
            self.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
                InstanceId=node, ShouldDecrementDesiredCapacity=True
            )
        self.step_until_loss()
        return remaining


def end_run(controller: RunController, outcome: Outcome) -> None:
    """End a run with this outcome, as the controller's loop does."""
    controller.write_outcome(outcome)
    controller.end_run(outcome)


def agent_event(run: str, node: str, state: str, attempt: int) -> AgentEvent:
    fields = {"run": run, "attempt": attempt, "state": state, "address": "127.77.9.9"}
    return AgentEvent.model_validate({**event_fields(node, "worker"), **fields})


def put_termination_hook(cluster: Cluster) -> None:
    cluster.autoscaling.put_lifecycle_hook(
        AutoScalingGroupName=cluster.group,
        LifecycleHookName=cluster.manifest.groups[0].lifecycle_hook,
        LifecycleTransition="autoscaling:EC2_INSTANCE_TERMINATING",
        HeartbeatTimeout=120,
    )
