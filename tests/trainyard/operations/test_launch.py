"""A launch against an Auto Scaling group of the emulated account: all nodes or none, with one reason."""

import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Capacity, ExpiredCredentials, PaymentFailure
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedReservation
from rehearsal.aws.timing import Timing
from tests import clusters
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay, RunInBackground
from trainyard.aws.clients import client
from trainyard.aws.reservations import cancel_reservation
from trainyard.models.events import HealthCheckResultEvent
from trainyard.models.health_check import NodeFault
from trainyard.models.layout import CURRENT_RUN, MANIFEST, RunLayout, attempt_source, chunk_key, chunk_prefix
from trainyard.models.run import Control, Outcome, RunRecord
from trainyard.models.startup_failures import PLAYBOOK_RETRY_SECONDS
from trainyard.operations import launch_operation, prestart_checks, startup
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import CapacityError, DeadlineError, LaunchError, StartupError
from trainyard.operations.launch import Launch, LaunchOptions
from trainyard.operations.startup import Deadline, NodeStartup

pytestmark = pytest.mark.usefixtures("fast_polls")


@pytest.fixture
def cluster(account: EmulatedAws) -> clusters.Cluster:
    return clusters.create_cluster(REGION, train=None, command=("train.py",))


@pytest.fixture
def on_launched(
    cluster: clusters.Cluster, run_in_background: RunInBackground
) -> Callable[[Callable[[str, list[str]], None]], None]:
    """Call a function with the run and its two nodes when they are launched."""

    def start(act: Callable[[str, list[str]], None]) -> None:
        def has_launched() -> bool:
            members = cluster.members()
            current_run = cluster.staging.find(CURRENT_RUN)
            if current_run is None or len(members) != 2:
                return False
            act(RunRecord.model_validate_json(current_run).run, members)
            return True

        run_in_background(has_launched)

    return start


def create_launch(cluster: clusters.Cluster) -> tuple[Launch, RecordingDisplay]:
    display = RecordingDisplay()
    return Launch(Cluster(cluster.stack, REGION), display), display


def read_outcome(cluster: clusters.Cluster, run: str) -> Outcome | None:
    content = cluster.data.find(RunLayout(run).outcome)
    return None if content is None else Outcome.model_validate_json(content)


def test_launch_returns_when_the_workers_of_every_node_run(cluster: clusters.Cluster, on_launched: Any) -> None:
    cluster.write_head_ready_events()

    def act(run: str, members: list[str]) -> None:
        for node in members:
            cluster.write_playbook_event(run, node, "ok")
            cluster.write_agent_event(run, node, "workers_up", 1)

    on_launched(act)
    launch, display = create_launch(cluster)
    result = launch.start()
    assert sorted(result.nodes) == sorted(cluster.members())
    assert result.phases.keys() == {"dataset", "head", "capacity", "workers", "startup"}
    assert any("workers up, attempt 1" in line for line in display.lines)


def test_launch_waits_for_the_start_of_a_capacity_block(
    account: EmulatedAws, cluster: clusters.Cluster, on_launched: Any
) -> None:
    name, start = "cr-0000000000000beef", time.time() + 3
    block = SeedReservation(id=name, instance_type="p5.48xlarge", zone="us-east-1a", count=2, block=True, start=start)
    account.seed(AccountSeed(region=REGION, reservations=(block.model_copy(update={"end": start + 86400}),)))
    (group,) = cluster.manifest.groups
    cluster.set_groups((group.model_copy(update={"reservation": name, "capacity_start_time": start}),))
    cluster.write_head_ready_events()

    def act(run: str, members: list[str]) -> None:
        for node in members:
            cluster.write_agent_event(run, node, "workers_up", 1)

    on_launched(act)
    launch, display = create_launch(cluster)
    launch.start()
    assert any(f"{name} starts at" in line for line in display.lines)
    assert launch.record.created >= start


@pytest.mark.parametrize("starts_in", [-60, 30])
def test_launch_ends_when_the_payment_of_its_block_fails(
    account: EmulatedAws, cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch, starts_in: float
) -> None:
    """Before the start of the block and after it, without a wait for capacity that does not come."""
    monkeypatch.setattr(launch_operation, "START_POLL_SECONDS", 0.1)
    account.set_timing(Timing(block_payment_seconds=1))
    account.inject(PaymentFailure())
    name, start = f"cr-000000000000{1000 + int(starts_in):05x}", time.time() + starts_in
    block = SeedReservation(id=name, instance_type="p5.48xlarge", zone="us-east-1a", count=2, block=True, start=start)
    block = block.model_copy(update={"end": start + 86400, "paid": False})
    account.seed(AccountSeed(region=REGION, reservations=(block,)))
    account.set_timing(Timing())
    (group,) = cluster.manifest.groups
    changes = {"reservation": name, "market": "capacity-block", "capacity_start_time": start}
    cluster.set_groups((group.model_copy(update=changes),))
    cluster.write_head_ready_events()
    launch, _ = create_launch(cluster)
    started = time.monotonic()
    try:
        with pytest.raises(CapacityError, match=f"{name} is payment-failed: AWS did not receive"):
            launch.start()
    finally:
        account.clear_faults()
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(("owner", "reason"), [(None, None), ("210987654321", "is not one of this account")])
def test_interruptible_reservation_of_another_account_is_refused(
    account: EmulatedAws, cluster: clusters.Cluster, owner: str | None, reason: str | None
) -> None:
    """Reclaims are read from the source reservation: without them no node saves a checkpoint."""
    name, market = f"cr-{0xBAD + (owner is None):017x}", "interruptible-capacity-reservation"
    seed = SeedReservation(
        id=name, instance_type="p5.48xlarge", zone="us-east-1a", count=2, interruptible=True, owner=owner
    )
    account.seed(AccountSeed(region=REGION, reservations=(seed,)))
    (group,) = cluster.manifest.groups
    group = group.model_copy(update={"reservation": name, "market": market})
    if reason is None:
        prestart_checks.require_source_reservation_in_account(REGION, group)
        return
    cluster.set_groups((group,))
    cluster.write_head_ready_events()
    launch, _ = create_launch(cluster)
    with pytest.raises(CapacityError, match=rf"{name}.*: its source reservation cr-\w+ {reason}"):
        launch.start()
    assert cluster.members() == []


def test_launch_without_capacity_reports_the_remaining_cost(account: EmulatedAws, cluster: clusters.Cluster) -> None:
    cluster.write_head_ready_events()
    shortage = clusters.capacity_limit(account, 0)
    account.inject(shortage)
    launch, _ = create_launch(cluster)
    with pytest.raises(CapacityError, match=rf"costs 0.25 USD per hour .* trainyard up -s {cluster.stack}"):
        launch.start()
    account.remove_faults([shortage])


def test_launch_without_capacity_reports_held_capacity(account: EmulatedAws, cluster: clusters.Cluster) -> None:
    cluster.write_head_ready_events()
    (group,) = cluster.manifest.groups
    cluster.set_groups((group.model_copy(update={"reserve": True, "nodes": 4, "node_usd_per_hour": 50.0}),))
    held = cluster.hold_capacity(2)
    account.inject(Capacity(limit=0, instance_type=group.instance_type))
    launch, _ = create_launch(cluster)
    cost = rf"{held} \(2 x .* in us-east-1a\) of trainyard reserve costs 100.00 USD per hour .*--cancel"
    with pytest.raises(CapacityError, match=cost):
        launch.start()
    account.clear_faults()
    cancel_reservation(REGION, held)


def test_health_check_measurements_are_displayed_before_the_result(cluster: clusters.Cluster, on_launched: Any) -> None:
    cluster.write_head_ready_events()

    def act(run: str, members: list[str]) -> None:
        fault = NodeFault(kind="gpus", text="7 usable GPUs, p4d.24xlarge has 8")
        cluster.write_health_check_event(run, members[0], 1)
        cluster.write_health_check_event(run, members[1], 1, faults=(fault,))
        cluster.write_event(run, "i-0", health_check_result(run, members[1]))  # listed first, reported last
        for node in members:
            cluster.write_agent_event(run, node, "workers_up", 1)

    on_launched(act)
    launch, display = create_launch(cluster)
    first, second = launch.start().nodes
    lines = [line for line in display.lines if "health check 1" in line]
    assert lines == [
        f"{first} health check 1: gloo, matmul 0.1 TFLOP/s",
        f"{second} health check 1: failed, 7 usable GPUs, p4d.24xlarge has 8",
        f"controller health check 1: {second} failed",
    ]


def health_check_result(run: str, node: str) -> HealthCheckResultEvent:
    fields = {"run": run, "number": 1, "decision": "repeat", "text": f"{node} failed"}
    return HealthCheckResultEvent.model_validate(
        {**clusters.event_fields("i-0", "head"), "time": time.time() + 60, **fields}
    )


def test_launch_returns_the_nodes_of_the_attempt(cluster: clusters.Cluster, on_launched: Any) -> None:
    """A launched node may have been unhealthy and replaced."""
    cluster.write_head_ready_events()

    def act(run: str, members: list[str]) -> None:
        control = Control(attempt=1, nodes=(members[0], "i-other"))
        cluster.data.write(RunLayout(run).control, control.model_dump_json().encode())
        for node in control.nodes:
            cluster.write_agent_event(run, node, "workers_up", 1)

    on_launched(act)
    launch, _ = create_launch(cluster)
    assert "i-other" in launch.start().nodes


def test_lease_exists_before_nodes_are_launched(cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.write_head_ready_events()
    launch, _ = create_launch(cluster)
    leases: list[float | None] = []

    def fail(counts: dict[str, int]) -> None:
        leases.append(cluster.lease_end())
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start()
    assert leases[0] == pytest.approx(time.time() + 20 * 60, abs=20)


def test_lease_ends_with_the_time_limit(cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = cluster.manifest.limits.model_copy(update={"time_limit_minutes": 6.0})
    manifest = cluster.manifest.model_copy(update={"limits": limits})
    cluster.staging.write(MANIFEST, manifest.model_dump_json().encode())
    cluster.write_head_ready_events()
    launch, _ = create_launch(cluster)

    def fail(counts: dict[str, int]) -> None:
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    with pytest.raises(LaunchError, match="stopped by the test"):
        launch.start()
    assert cluster.lease_end() == pytest.approx(launch.record.deadline, abs=1.0)


def test_launch_rollback_when_capacity_is_short(cluster: clusters.Cluster, account: EmulatedAws) -> None:
    cluster.write_head_ready_events()
    launch, _ = create_launch(cluster)
    account.inject(clusters.capacity_limit(account, 1))
    try:
        with pytest.raises(LaunchError, match=r"1 of 2 requested nodes.*: InsufficientInstanceCapacity"):
            launch.start()
    finally:
        account.clear_faults()
    assert cluster.members() == []
    assert cluster.describe_group()["DesiredCapacity"] == 0


def test_rollback_does_not_need_the_record(cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A denied write of the outcome must not hide what still runs."""
    cluster.write_head_ready_events()
    launch, display = create_launch(cluster)

    def deny(reason: str) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "denied"}}, "PutObject")

    def fail(counts: dict[str, int]) -> None:
        raise LaunchError("stopped by the test")

    monkeypatch.setattr(launch, "add_nodes", fail)
    monkeypatch.setattr(launch, "_record_failure", deny)
    monkeypatch.setattr(launch.workers, "rollback", lambda _, superseded: ["i-1"])
    monkeypatch.setattr(launch.workers, "usd_per_hour", lambda _: {"i-1": 22.0})
    with pytest.raises(
        LaunchError, match=r"stopped by the test. AWS did not terminate nodes that cost 22.00 USD per hour: i-1 "
    ):
        launch.start()
    assert any("its record could not be written" in line for line in display.lines)


def test_launch_reports_the_message_of_a_failed_node(
    cluster: clusters.Cluster, on_launched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "CONTROLLER_REACTION_SECONDS", 0.0)
    cluster.write_head_ready_events()

    def act(run: str, members: list[str]) -> None:
        cluster.write_playbook_failure_events(run, members[0], "pytorch: Import torch: no such file")

    on_launched(act)
    launch, _ = create_launch(cluster)
    with pytest.raises(LaunchError, match=r"node i-\w+ could not be configured: pytorch: Import torch: no such file"):
        launch.start()
    assert cluster.members() == []
    result = read_outcome(cluster, launch.record.run)
    assert result is not None
    assert result.state == "failed"


def test_head_failure_ends_the_launch_before_nodes_start(cluster: clusters.Cluster) -> None:
    cluster.write_head_failure_events("preflight: the manifest is bad")
    launch, _ = create_launch(cluster)
    with pytest.raises(LaunchError, match=r"the head i-\w+ could not be configured: preflight: the manifest is bad"):
        launch.start()
    assert cluster.members() == []
    assert cluster.staging.find(CURRENT_RUN) is None


def test_launch_reports_the_traceback_of_a_job_that_fails_immediately(
    cluster: clusters.Cluster, on_launched: Any
) -> None:
    cluster.write_head_ready_events()
    failure = {"rank": 1, "local_rank": 1, "time": 1.0, "exitcode": 1, "message": "E", "traceback": "Traceback: here"}

    def act(run: str, members: list[str]) -> None:
        outcome = Outcome.model_validate(
            {"state": "failed", "reason": "rank 1 failed", "attempts": 2, "ended_at": 1.0, "failure": failure}
        )
        cluster.data.write(RunLayout(run).outcome, outcome.model_dump_json().encode())
        # As the controller does: the nodes are terminated during the launch.
        cluster.autoscaling.set_desired_capacity(AutoScalingGroupName=cluster.group, DesiredCapacity=0)

    on_launched(act)
    launch, _ = create_launch(cluster)
    with pytest.raises(LaunchError, match=r"the job failed: rank 1 failed\nTraceback: here"):
        launch.start()
    assert cluster.members() == []


def test_deadline_error_contains_the_last_status_of_each_node(cluster: clusters.Cluster, on_launched: Any) -> None:
    cluster.write_head_ready_events()
    on_launched(lambda run, members: cluster.write_playbook_event(run, members[0], "started"))
    launch, _ = create_launch(cluster)
    launch.deadline.at = time.time() + 4
    with pytest.raises(LaunchError, match=r"waiting for the job's start.*node playbook started.*no events received"):
        launch.start()
    assert cluster.members() == []


def test_launch_of_another_manifest_is_refused_while_a_run_is_active(cluster: clusters.Cluster) -> None:
    record = cluster.create_run_record().model_copy(update={"manifest_digest": "0" * 64})
    cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    running = cluster.launch_instances(2)
    launch, _ = create_launch(cluster)
    with pytest.raises(LaunchError, match=f"run {record.run} is active, and this launch would stop it"):
        launch.start()
    assert sorted(cluster.members()) == sorted(running)


def test_second_launch_of_the_same_manifest_follows_the_run_that_starts(cluster: clusters.Cluster) -> None:
    record = cluster.create_run_record()
    cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    running = cluster.launch_instances(2)
    for node in running:
        cluster.write_agent_event(record.run, node, "workers_up", 1)
    launch, display = create_launch(cluster)
    assert (launch.start().run, sorted(cluster.members())) == (record.run, sorted(running))
    assert any("workers up, attempt 1" in line for line in display.lines)


def test_launch_without_wait_returns_when_the_nodes_are_launched(cluster: clusters.Cluster) -> None:
    cluster.write_head_ready_events()
    display, options = RecordingDisplay(), LaunchOptions(wait=False)
    result = Launch(Cluster(cluster.stack, REGION), display, options).start()
    assert (result.state, sorted(result.nodes)) == ("launched", sorted(cluster.members()))
    assert f"trainyard status --wait -s {cluster.stack}" in display.lines[-1]
    again = Launch(Cluster(cluster.stack, REGION), display, options).start(update=True)
    assert (again.run, again.state, sorted(again.nodes)) == (result.run, "launched", sorted(result.nodes))


def test_builtin_trainer_needs_a_dataset(account: EmulatedAws) -> None:
    cluster = clusters.create_cluster(REGION, builtin_corpus=False)
    cluster.data.write("datasets/d/1.txt", b"one")
    launch, _ = create_launch(cluster)
    with pytest.raises(LaunchError, match=r"has no dataset.json, which the built-in trainer reads: upload it"):
        launch.start()


def test_run_to_resume_from_must_have_a_checkpoint(account: EmulatedAws) -> None:
    cluster = clusters.create_cluster(REGION, train=None, command=("train.py",), resume="no-such-run")
    launch, _ = create_launch(cluster)
    with pytest.raises(LaunchError, match=r"job.resume = 'no-such-run': that run has no checkpoint"):
        launch.start()


def test_builtin_trainer_has_started_with_the_first_metric_line(account: EmulatedAws) -> None:
    cluster = clusters.create_cluster(REGION)
    run = cluster.create_run_record().run
    startup_of_nodes = NodeStartup(Cluster(cluster.stack, REGION), RecordingDisplay(), Deadline(0.005), run)
    startup_of_nodes.expect(["i-1"])
    cluster.write_agent_event(run, "i-1", "workers_up", 2)
    prefix = chunk_prefix(RunLayout(run).metrics, "i-1", "0001", attempt_source(1, "metrics"))
    cluster.data.write(chunk_key(prefix, 0), b"{}\n")  # of the previous attempt
    with pytest.raises(StartupError, match="waiting for the job's start"):
        startup_of_nodes.wait_for_job(1)
    prefix = chunk_prefix(RunLayout(run).metrics, "i-1", "0001", attempt_source(2, "metrics"))
    cluster.data.write(chunk_key(prefix, 0), b"{}\n")
    startup_of_nodes.wait_for_job(1)


def test_playbook_that_succeeds_after_failures_is_accepted(cluster: clusters.Cluster, on_launched: Any) -> None:
    cluster.write_head_ready_events()

    def act(run: str, members: list[str]) -> None:
        for node in members:
            cluster.write_playbook_event(run, node, "failed", "a mirror was unavailable")
            cluster.write_playbook_event(run, node, "failed", "a mirror was unavailable", PLAYBOOK_RETRY_SECONDS - 1)
            cluster.write_playbook_event(run, node, "ok", "", PLAYBOOK_RETRY_SECONDS)
            cluster.write_agent_event(run, node, "workers_up", 1)

    on_launched(act)
    launch, _ = create_launch(cluster)
    assert len(launch.start().nodes) == 2


def test_events_of_an_earlier_head_are_ignored(cluster: clusters.Cluster, on_launched: Any) -> None:
    cluster.write_head_failure_events("bad")
    cluster.replace_head()
    launch, _ = create_launch(cluster)
    launch.deadline.at = time.time() + 1
    with pytest.raises(LaunchError, match="waiting for the head's controller"):
        launch.start()


def test_head_that_is_replaced_meanwhile_is_awaited(
    cluster: clusters.Cluster, on_launched: Any, run_in_background: RunInBackground
) -> None:
    cluster.launch_head()
    launch, display = create_launch(cluster)

    def start_workers(run: str, nodes: list[str]) -> None:
        for node in nodes:
            cluster.write_agent_event(run, node, "workers_up", 1)

    def replace_head() -> bool:
        if not any("waiting for the head's controller" in line for line in display.details):
            return False
        cluster.replace_head()
        cluster.write_head_ready_events()
        return True

    run_in_background(replace_head)
    on_launched(start_workers)
    launch.start()
    assert f"head {cluster.launch_head()} ready" in display.lines


def test_head_of_an_earlier_template_is_not_awaited(cluster: clusters.Cluster) -> None:
    """The provider starts an instance refresh and does not wait for it."""
    cluster.write_head_ready_events()
    name = cluster.manifest.head_autoscaling_group
    client("ec2", REGION).create_launch_template_version(
        LaunchTemplateName=cluster.stack,
        LaunchTemplateData={"ImageId": clusters.ubuntu_image_id(REGION), "InstanceType": "t3.large"},
    )
    template = {"LaunchTemplateName": cluster.stack, "Version": "2"}
    cluster.autoscaling.update_auto_scaling_group(AutoScalingGroupName=name, LaunchTemplate=template)
    launch, _ = create_launch(cluster)
    launch.deadline.at = time.time() + 1
    with pytest.raises(LaunchError, match=f"the Auto Scaling group {name} has no instance of its launch template. If"):
        launch.start()


def test_node_without_events_is_reported_before_the_deadline(
    cluster: clusters.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(startup, "NO_EVENTS_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(startup, "CONTROLLER_REACTION_SECONDS", 0.0)
    cluster.write_head_ready_events()
    launch, _ = create_launch(cluster)
    with pytest.raises(LaunchError, match=r"no events received from i-\w+, i-\w+ within"):
        launch.start()
    assert cluster.members() == []


def test_expired_credentials_are_one_message_and_the_nodes_remain(
    cluster: clusters.Cluster, on_launched: Any, account: EmulatedAws
) -> None:
    """The message names the credentials, the nodes, and what ends them: nothing can be rolled back."""
    cluster.write_head_ready_events()
    nodes: list[str] = []

    def act(run: str, members: list[str]) -> None:
        nodes.extend(members)
        account.inject(ExpiredCredentials(seconds=0))

    on_launched(act)
    launch, _ = create_launch(cluster)
    try:
        with pytest.raises(LaunchError) as caught:
            launch.start()
    finally:
        account.clear_faults()
    message = str(caught.value)
    assert message.startswith("the AWS credentials expired during the launch (ExpiredToken: ")
    assert all(part in message for part in (*nodes, "the controller", "the lease", f"stop -s {cluster.stack}"))
    assert "\n" not in message
    assert sorted(cluster.members()) == sorted(nodes)


def test_expired_credentials_before_nodes_are_added(cluster: clusters.Cluster, account: EmulatedAws) -> None:
    launch, _ = create_launch(cluster)
    account.inject(ExpiredCredentials(seconds=0))
    try:
        with pytest.raises(LaunchError, match=r"credentials expired.*No node was added. Then launch again"):
            launch._launch_new_run()
    finally:
        account.clear_faults()


def test_shutdown_of_the_earlier_nodes_does_not_count_as_startup(
    cluster: clusters.Cluster, account: EmulatedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write_head_ready_events()
    record = cluster.create_run_record()
    cluster.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    outcome = Outcome(state="succeeded", reason="test", attempts=1, ended_at=time.time())
    cluster.data.write(RunLayout(record.run).outcome, outcome.model_dump_json().encode())
    launch, _ = create_launch(cluster)
    before, members = launch.deadline.at, iter([["i-1"]] * 4)
    monkeypatch.setattr(launch.workers, "members", lambda: next(members, []))
    monkeypatch.setattr(launch, "add_nodes", raise_launch_error)
    with pytest.raises(LaunchError, match="ended by the test"):
        launch.start()
    assert launch.deadline.at >= before + 3 * startup.POLL_SECONDS


def raise_launch_error(*_: object) -> NoReturn:
    raise LaunchError("ended by the test")


def test_launch_waits_for_the_controller_to_replace_a_failed_node(cluster: clusters.Cluster) -> None:
    run, display = cluster.create_run_record().run, RecordingDisplay()
    waiting = NodeStartup(Cluster(cluster.stack, REGION), display, Deadline(0.005), run, is_new=True)
    waiting.expect(["i-1"])
    cluster.write_playbook_failure_events(run, "i-1", "no disk")
    control = Control(failed_startups={"i-1": "no disk"})
    cluster.data.write(RunLayout(run).control, control.model_dump_json().encode())
    with pytest.raises(DeadlineError, match="i-1: replaced"):
        waiting.wait_for_job(1)
    cluster.write_playbook_failure_events(run, "i-1", "no disk")  # until it is terminated
    with pytest.raises(DeadlineError, match="i-1: replaced"):
        waiting.wait_for_job(1)
    assert len([line for line in display.lines if "the controller replaces it" in line]) == 1
