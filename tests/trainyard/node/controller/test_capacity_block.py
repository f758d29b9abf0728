"""The controller of a run in a Capacity Block: its extension, and a run whose nodes AWS starts."""

import time
from itertools import count
from typing import Any

import pytest
from botocore.exceptions import ClientError

from rehearsal.aws.faults import Deny, PaymentFailure
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedReservation
from rehearsal.aws.timing import Timing
from tests.clusters import create_cluster
from tests.conftest import REGION
from tests.trainyard.node.controller.runs import Run
from trainyard.aws.block_end import read_block
from trainyard.aws.capacity_blocks import find_extensions, purchase_extension
from trainyard.aws.scheduled_start import put_scheduled_start, read_scheduled_start
from trainyard.models.run import RunRecord
from trainyard.node.controller import deadline as deadline_module
from trainyard.node.controller.outcomes import create_outcome

HOUR = 3600.0
_numbers = count(0xE1000)


@pytest.fixture(scope="module")
def account(own_account: EmulatedAws) -> EmulatedAws:
    """An account of this file, because the tests advance its clock."""
    return own_account


def create_block(account: EmulatedAws, ends_in: float = 4 * HOUR, *, paid: bool = True) -> str:
    name = f"cr-{next(_numbers):017x}"
    block = SeedReservation(id=name, instance_type="p5.48xlarge", zone="us-east-1a", count=2, block=True, paid=paid)
    times = {"start": account.now() - HOUR, "end": float(int(account.now() + ends_in))}
    account.seed(AccountSeed(region=REGION, reservations=(block.model_copy(update=times),)))
    return name


def run_in_block(block: str, minutes: float = 24 * 60, lease: float = 20.0, **changes: Any) -> Run:
    """Return a run whose record has the end of the block as its deadline."""
    run = Run(create_cluster(REGION))
    end = read_block(REGION, block).usable_end
    assert end is not None
    limits = run.record.limits.model_copy(update={"time_limit_minutes": minutes, "lease_minutes": lease})
    update = {"limits": limits, "deadline": end, "block_reservation_ids": (block,), **changes}
    run.record = run.record.model_copy(update=update)
    run.start_controller()
    return run


def extend(account: EmulatedAws, block: str) -> None:
    (offering,) = find_extensions(REGION, block, 24)
    purchase_extension(REGION, block, offering.id)
    account.advance_clock(10)


def lease_end(run: Run) -> float:
    end = run.cluster.lease_end()
    assert end is not None
    return end


def test_extension_moves_deadline_and_lease_of_a_running_run(
    account: EmulatedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run could use the block for 30 more minutes: without the extension, the lease ends the nodes then."""
    block = create_block(account, ends_in=70 * 60)
    run = run_in_block(block, lease=60.0)
    old_deadline = run.record.deadline
    assert run.step("ready", 0) is None
    assert lease_end(run) == pytest.approx(old_deadline, abs=2)
    extend(account, block)
    monkeypatch.setattr(deadline_module, "POLL_SECONDS", 0.0)
    assert run.controller.step() is None
    assert lease_end(run) == pytest.approx(time.time() + HOUR, abs=10)
    control = run.control()
    assert control is not None
    assert control.deadline == pytest.approx(run.record.created + 24 * HOUR, abs=1)  # the time limit is the earlier one


def test_extended_run_continues_after_the_old_end(account: EmulatedAws) -> None:
    """A restarted controller reads the end before it decides, although the deadline of the record is over."""
    block = create_block(account)
    run = run_in_block(block, deadline=time.time() - 1)
    extend(account, block)
    assert run.step("ready", 0) is None
    control = run.control()
    assert control is not None
    assert control.deadline is not None
    assert control.deadline > time.time() + 20 * HOUR


def test_time_limit_ends_an_extended_run(account: EmulatedAws) -> None:
    block = create_block(account)
    run = run_in_block(block, minutes=30, created=time.time() - 31 * 60)
    extend(account, block)
    outcome = run.step("ready", 0)
    assert outcome is not None
    assert "the time limit of 30 minutes is over" in outcome.reason


def test_run_ends_with_a_block_that_is_not_extended(account: EmulatedAws) -> None:
    run = run_in_block(create_block(account, ends_in=35 * 60))
    outcome = run.step("ready", 0)
    assert outcome is not None
    assert outcome.reason.startswith("the capacity of the run (capacity) was usable until")


def test_run_ends_when_the_payment_of_its_block_fails(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> None:
    account.set_timing(Timing(block_payment_seconds=60))
    block = create_block(account, paid=False)
    account.set_timing(Timing())
    run = run_in_block(block)
    assert run.controller.step() is None
    account.inject(PaymentFailure())
    account.advance_clock(61)
    account.clear_faults()
    monkeypatch.setattr(deadline_module, "POLL_SECONDS", 0.0)
    outcome = run.controller.step()
    assert outcome is not None
    assert outcome.state == "failed"
    assert outcome.reason.startswith(f"{block} is payment-failed: AWS did not receive")


def test_published_deadline_applies_while_aws_does_not_report_the_end(account: EmulatedAws) -> None:
    block = create_block(account)
    run = run_in_block(block, deadline=time.time() - 1)
    run.step("ready", 0)  # publishes the deadline
    account.inject(Deny(operation="ec2:DescribeCapacityReservations"))
    try:
        run.start_controller()
        assert run.step("ready", 0) is None
    finally:
        account.clear_faults()


def scheduled_run(start: float) -> Run:
    """Return a run whose nodes AWS starts at `start`; none has started."""
    run = Run(create_cluster(REGION))
    for node in run.nodes:
        run.cluster.autoscaling.terminate_instance_in_auto_scaling_group(
            InstanceId=node, ShouldDecrementDesiredCapacity=True
        )
    changes = {"scheduled_start": start, "deadline": start + 24 * HOUR}
    run.record = RunRecord.model_validate({**run.record.model_dump(), **changes})
    run.start_controller()
    return run


def test_lease_of_a_waiting_run_ends_after_its_start() -> None:
    """A lease before the start would have run by then: the nodes would have none."""
    start = time.time() + 5 * HOUR
    run = scheduled_run(start)
    assert run.controller.step() is None
    assert lease_end(run) == pytest.approx(start + run.record.limits.lease_minutes * 60, abs=1)


@pytest.mark.parametrize(("minutes", "ends"), [(14, False), (16, True)])
def test_run_ends_when_nodes_are_missing_after_the_start(minutes: float, ends: bool) -> None:
    run = scheduled_run(time.time() - minutes * 60)
    run.cluster.launch_instances(1)
    run.record = run.record.model_copy(
        update={"limits": run.record.limits.model_copy(update={"startup_timeout_minutes": 60.0})}
    )
    run.start_controller()
    run.step_with_members()
    outcome = run.step_with_members()
    assert (outcome is not None) == ends
    if outcome:
        assert outcome.reason.startswith("AWS started 1 of 2 nodes within 15 minutes of the scheduled start")


def test_missing_nodes_end_with_the_reason_of_auto_scaling(account: EmulatedAws) -> None:
    run = scheduled_run(time.time() - 16 * 60)
    account.inject({"kind": "capacity", "limit": 0, "instance_type": "c7i.xlarge"})
    try:
        run.cluster.autoscaling.set_desired_capacity(AutoScalingGroupName=run.cluster.group, DesiredCapacity=2)
        run.record = run.record.model_copy(
            update={"limits": run.record.limits.model_copy(update={"startup_timeout_minutes": 60.0})}
        )
        run.start_controller()
        run.step_with_members()
        outcome = run.step_with_members()
    finally:
        account.clear_faults()
    assert outcome is not None
    assert "capacity" in outcome.reason


def test_end_of_a_scheduled_run_cancels_its_start_and_scales_to_zero(account: EmulatedAws) -> None:
    run = scheduled_run(time.time() + HOUR)
    put_scheduled_start(REGION, {run.cluster.group: 2}, account.now() + HOUR)
    run.cluster.launch_instances(1)
    run.controller.end_run(create_outcome(run.controller.state, "stopped", "test"))
    assert read_scheduled_start(REGION, [run.cluster.group]) is None
    assert run.cluster.describe_group()["DesiredCapacity"] == 0


def test_denied_cancellation_scales_to_zero(account: EmulatedAws) -> None:
    run = scheduled_run(time.time() + HOUR)
    put_scheduled_start(REGION, {run.cluster.group: 2}, account.now() + HOUR)
    run.cluster.launch_instances(1)
    account.inject(Deny(operation="autoscaling:DeleteScheduledAction"))
    try:
        with pytest.raises(ClientError):
            run.controller.end_run(create_outcome(run.controller.state, "stopped", "test"))
    finally:
        account.clear_faults()
    assert run.cluster.describe_group()["DesiredCapacity"] == 0


def test_ready_nodes_of_a_scheduled_run_start_the_job() -> None:
    run = scheduled_run(time.time() - 60)
    run.nodes = run.cluster.launch_instances(2)
    run.step("ready", 0)
    run.step_with_members()
    run.step_with_members()
    control = run.control()
    assert control is not None
    assert control.attempt == 1
