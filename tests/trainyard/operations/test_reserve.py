"""`trainyard reserve` holds the capacity of a stack before it is deployed."""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rehearsal.aws.faults import Capacity, Deny, Quota
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests import clusters
from tests.conftest import REGION
from tests.problems import rejects
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws import placement, tags
from trainyard.aws.clients import client
from trainyard.aws.reservations import CapacityReservation, create_reservation, find_reservations
from trainyard.config import CONFIG_KEY
from trainyard.config.loader import load_settings
from trainyard.config.settings import StackSettings
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.manifest import Subnet
from trainyard.models.run import Outcome
from trainyard.operations import pending_reservations
from trainyard.operations.cluster import Cluster
from trainyard.operations.errors import CapacityError
from trainyard.operations.reservations import GroupReservations
from trainyard.operations.reserve import HeldCapacity, cancel_held_capacity, hold_capacity
from trainyard.operations.stack_reservations import cancel_reservations_of_stack
from trainyard.times import format_time

ROOT = Path(__file__).parents[3]
WORKER_TYPE = "p4d.24xlarge"
_numbers = itertools.count(1)


def settings_of(**changes: Any) -> StackSettings:
    """Return the settings of the shipped A100 stack, with changes. None removes a key of `capacity`."""
    file = ROOT / "stacks/Pulumi.a100-cluster.yaml"
    raw = yaml.safe_load(file.read_text())["config"][CONFIG_KEY]
    capacity = {"wait_minutes": 0, **changes.pop("capacity", {})}
    capacity = {key: value for key, value in capacity.items() if value is not None}
    return load_settings({**raw, "capacity": capacity, **changes}, ROOT, file.name)


class Operator:
    """Runs `trainyard reserve` for a stack that is not deployed, and records the questions."""

    def __init__(self) -> None:
        self.cluster = Cluster(f"held-{next(_numbers)}", REGION)
        self.display, self.questions = RecordingDisplay(), list[str]()

    def reserve(self, settings: StackSettings | None = None, hours: float | None = None) -> HeldCapacity:
        return hold_capacity(self.cluster, settings or settings_of(), hours, self.display, self.questions.append)

    def held(self) -> list[CapacityReservation]:
        return find_reservations(REGION, tags.held_capacity_tags(self.cluster.stack_tag))

    def placement_groups(self) -> list[placement.PlacementGroup]:
        return placement.find_placement_groups(REGION, {tags.STACK: self.cluster.stack_tag})


@pytest.fixture
def operator(account: EmulatedAws) -> Iterator[Operator]:
    created = Operator()
    yield created
    account.clear_faults()
    cancel_held_capacity(created.cluster, created.display)


def test_capacity_is_held_in_a_placement_group_of_the_first_zone_with_all_of_it(
    account: EmulatedAws, operator: Operator
) -> None:
    account.inject(Capacity(limit=3, instance_type=WORKER_TYPE, zone="us-east-1a"))
    held = operator.reserve()
    assert (held.zone, held.instances) == ("us-east-1b", 4)
    assert [held.placement_group] == [group.arn for group in operator.placement_groups()]


def test_existing_subnet_decides_the_zone(operator: Operator) -> None:
    ec2 = client("ec2", REGION)
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/20", AvailabilityZone="us-east-1b")["Subnet"]["SubnetId"]
    settings = settings_of(network={"existing": {"vpc_id": vpc, "subnet_id": subnet}})
    assert operator.reserve(settings).zone == "us-east-1b"


def test_zone_without_the_instance_types_is_refused_at_once(operator: Operator) -> None:
    with rejects("zone_without_types", "capacity.zones", "us-west-2a"):
        operator.reserve(settings_of(capacity={"zones": ["us-west-2a"]}))
    assert (operator.held(), operator.placement_groups(), operator.questions) == ([], [], [])


def test_price_is_confirmed_first(account: EmulatedAws, operator: Operator) -> None:
    def refuse(question: str) -> None:
        raise KeyboardInterrupt(question)

    with pytest.raises(
        KeyboardInterrupt, match=r"2 hours\. Reserve 4 x p4d.24xlarge in us-east-1 for 87.83 USD per hour"
    ):
        hold_capacity(operator.cluster, settings_of(), 2, operator.display, refuse)
    assert operator.held() == []
    assert operator.placement_groups() == []


def test_second_call_reserves_nothing_more(operator: Operator) -> None:
    assert operator.reserve() == operator.reserve()
    assert len(operator.questions) == 1


def test_end_of_the_held_capacity_is_displayed(operator: Operator) -> None:
    held = operator.reserve(hours=3)
    assert held.end is not None
    assert held.end == pytest.approx(time.time() + 3 * 3600, abs=60)
    operator.reserve()
    zone, end = held.zone, format_time(held.end)
    assert operator.display.lines[-1] == f"capacity {held.reservation} exists in {zone} until {end}"


@pytest.mark.parametrize("changes", [{"nodes": 2}, {"instance_type": "p4de.24xlarge"}])
def test_held_capacity_that_differs_from_the_file_is_refused(operator: Operator, changes: dict[str, Any]) -> None:
    operator.reserve()
    with rejects("other_capacity_held", operator.cluster.stack):
        operator.reserve(settings_of().model_copy(update=changes))
    assert len(operator.questions) == 1


def test_later_end_extends_the_held_capacity_after_a_confirmation(operator: Operator) -> None:
    held = operator.reserve(hours=1)
    extended = operator.reserve(hours=4)
    assert extended.reservation == held.reservation
    assert extended.end == pytest.approx(time.time() + 4 * 3600, abs=60)
    assert [each.end for each in operator.held()] == [extended.end]
    assert operator.questions[1].startswith(f"Extend {held.reservation} (4 x p4d.24xlarge, 87.83 USD per hour) from ")


def test_held_capacity_is_not_extended_without_a_confirmation(operator: Operator) -> None:
    held = operator.reserve(hours=1)

    def refuse(question: str) -> None:
        raise KeyboardInterrupt(question)

    with pytest.raises(KeyboardInterrupt, match="Extend"):
        hold_capacity(operator.cluster, settings_of(), 4, operator.display, refuse)
    assert [each.end for each in operator.held()] == [held.end]


def test_earlier_end_does_not_change_the_held_capacity(operator: Operator) -> None:
    held = operator.reserve(hours=4)
    assert operator.reserve(hours=1) == held
    assert len(operator.questions) == 1


def test_refused_extension_names_the_action(account: EmulatedAws, operator: Operator) -> None:
    held = operator.reserve(hours=1)
    account.inject(Deny(operation="ec2:ModifyCapacityReservation"))
    with pytest.raises(CapacityError, match=f"the end of {held.reservation}: .*--cancel"):
        operator.reserve(hours=4)


def test_shortage_deletes_the_placement_group(account: EmulatedAws, operator: Operator) -> None:
    account.inject(Capacity(limit=0, instance_type=WORKER_TYPE))
    with pytest.raises(CapacityError, match="us-east-1a: InsufficientInstanceCapacity, us-east-1b: "):
        operator.reserve()
    assert operator.placement_groups() == []


def test_zones_that_refuse_are_displayed_with_the_reason(account: EmulatedAws, operator: Operator) -> None:
    account.inject(Capacity(limit=3, instance_type=WORKER_TYPE, zone="us-east-1a"))
    operator.reserve()
    refused, reserved = operator.display.lines
    assert refused.startswith("capacity no 4 x p4d.24xlarge in us-east-1a: InsufficientInstanceCapacity: ")
    assert reserved.startswith("capacity reserved 4 x p4d.24xlarge in us-east-1b ")


def test_exceeded_quota_is_named_with_the_command_for_an_increase(account: EmulatedAws, operator: Operator) -> None:
    account.inject(Quota(code="L-417A185B", vcpus=100))
    with pytest.raises(
        CapacityError, match=r"needs 384 vCPUs .*\(L-417A185B\).* --quota-code L-417A185B --desired-value N"
    ):
        operator.reserve()


def test_shortage_names_one_attempt(account: EmulatedAws, operator: Operator) -> None:
    account.inject(Capacity(limit=0, instance_type=WORKER_TYPE))
    with pytest.raises(CapacityError, match=r"after 1 attempt in 0\.0 minutes"):
        operator.reserve()


def test_failure_to_delete_the_placement_group_does_not_hide_the_shortage(
    account: EmulatedAws, operator: Operator
) -> None:
    account.inject(Capacity(limit=0, instance_type=WORKER_TYPE), Deny(operation="ec2:DeletePlacementGroup"))
    with pytest.raises(CapacityError, match="InsufficientInstanceCapacity"):
        operator.reserve()


def test_stack_without_a_reserving_launch_is_refused(operator: Operator) -> None:
    with rejects("nothing_to_reserve", operator.cluster.stack):
        operator.reserve(settings_of(capacity={"reserve": False, "wait_minutes": None}))


def test_release_cancels_the_reservation_and_its_group(operator: Operator) -> None:
    reservation = operator.reserve().reservation
    assert cancel_held_capacity(operator.cluster, operator.display) == [reservation]
    assert operator.held() == []
    assert operator.placement_groups() == []


def create_run(stack: clusters.Cluster) -> tuple[str, str]:
    """Create an active run that uses held capacity and a reservation of its launch; return their ids."""
    held, own = (
        create_reservation(
            REGION,
            instance_type=WORKER_TYPE,
            zone="us-east-1a",
            instances=2,
            end=time.time() + 7200,
            placement_group_arn=None,
            tags={tags.STACK: stack.stack_tag, tags.ROLE: role},
            token=f"{stack.stack}-{role}",
        ).id
        for role in (tags.HELD_CAPACITY, "workers")
    )
    record = stack.create_run_record().model_copy(update={"reservations": (held, own)})
    stack.staging.write(CURRENT_RUN, record.model_dump_json().encode())
    return held, own


def test_reservation_of_an_active_run_is_not_cancelled(operator: Operator) -> None:
    stack = clusters.create_cluster(REGION)
    names = create_run(stack)
    with rejects("reservation_in_use", names[0]):
        cancel_held_capacity(Cluster(stack.stack, REGION), operator.display)
    assert {each.id for each in find_reservations(REGION, {tags.STACK: stack.stack_tag})} == set(names)
    cancel_reservations_of_stack(REGION, stack.stack_tag, operator.display)


def test_release_cancels_only_held_capacity(operator: Operator) -> None:
    stack = clusters.create_cluster(REGION)
    held, own = create_run(stack)
    run = Cluster(stack.stack, REGION).current_run()
    assert run is not None
    outcome = Outcome(state="succeeded", reason="done", attempts=1, ended_at=time.time())
    stack.data.write(RunLayout(run.run).outcome, outcome.model_dump_json().encode())
    assert cancel_held_capacity(Cluster(stack.stack, REGION), operator.display) == [held]
    assert [each.id for each in find_reservations(REGION, {tags.STACK: stack.stack_tag})] == [own]
    cancel_reservations_of_stack(REGION, stack.stack_tag, operator.display)


@pytest.fixture
def stack(operator: Operator) -> clusters.Cluster:
    """A deployed stack in us-east-1a, for which the operator reserves."""
    deployed = clusters.create_cluster(REGION)
    (group,) = deployed.manifest.groups
    deployed.set_groups((group.model_copy(update={"subnets": (Subnet(id="subnet-1", zone="us-east-1a"),)}),))
    operator.cluster = Cluster(deployed.stack, REGION)
    return deployed


def test_deployed_stack_with_a_file_system_may_move_to_another_zone(
    account: EmulatedAws, operator: Operator, stack: clusters.Cluster
) -> None:
    account.inject(Capacity(limit=0, instance_type=WORKER_TYPE, zone="us-east-1a"))
    assert operator.reserve().zone == "us-east-1b"
    assert "the stack is in us-east-1a. Set capacity.zones: [us-east-1b]" in operator.display.lines[-1]


def test_zone_of_the_deployed_stack_is_searched_first(operator: Operator, stack: clusters.Cluster) -> None:
    (group,) = stack.manifest.groups
    stack.set_groups((group.model_copy(update={"subnets": (Subnet(id="subnet-1", zone="us-east-1b"),)}),))
    assert operator.reserve().zone == "us-east-1b"


def test_active_run_keeps_its_zone(account: EmulatedAws, operator: Operator, stack: clusters.Cluster) -> None:
    create_run(stack)
    cancel_reservations_of_stack(REGION, stack.stack_tag, operator.display)
    account.inject(Capacity(limit=0, instance_type=WORKER_TYPE, zone="us-east-1a"))
    with pytest.raises(CapacityError, match=r": us-east-1a: InsufficientInstanceCapacity\. Increase"):
        operator.reserve()


def launch_reservation(stack: str, held: HeldCapacity) -> CapacityReservation:
    """Return the reservation of a launch of a stack that was deployed with the held capacity."""
    cluster = clusters.create_cluster(REGION)
    (group,) = cluster.manifest.groups
    changes = {"instance_type": held.instance_type, "reserve": True, "placement_group_arn": held.placement_group}
    cluster.set_groups((group.model_copy(update={**changes, "nodes": 4}),))
    manifest = cluster.manifest.model_copy(update={"stack": stack})
    return GroupReservations(manifest, RecordingDisplay(), "launch").reserve(manifest.groups[0], 4, 1200)


def test_launch_uses_the_held_capacity(operator: Operator) -> None:
    held = operator.reserve()
    assert launch_reservation(operator.cluster.stack, held).id == held.reservation


def test_launch_refuses_held_capacity_of_another_type(operator: Operator) -> None:
    held = operator.reserve()
    with pytest.raises(CapacityError, match=f"{held.reservation} of trainyard reserve .*--cancel"):
        launch_reservation(operator.cluster.stack, held.model_copy(update={"instance_type": "p5.48xlarge"}))


def test_terminated_command_cancels_the_reservation_for_which_it_waits(
    account: EmulatedAws, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.set_timing(Timing(reservation_pending_seconds=1))
    monkeypatch.setattr(pending_reservations, "sleep_with_checks", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        operator.reserve()
    account.set_timing(Timing())
    assert (operator.held(), operator.placement_groups()) == ([], [])
