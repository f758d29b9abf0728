"""The controller requests a checkpoint when the owner of an interruptible reservation reclaims instances."""

import itertools
from collections.abc import Iterator

import pytest

from rehearsal.aws.faults import Deny
from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.seed_models import AccountSeed, SeedReservation
from tests.clusters import Cluster, create_cluster, ubuntu_image_id
from tests.conftest import REGION
from tests.trainyard.node.controller.runs import Run
from trainyard.aws.clients import client
from trainyard.aws.reservations import cancel_reservation, find_source

MARKET = "interruptible-capacity-reservation"
_numbers = itertools.count(1)


class Reservation:
    """An interruptible reservation of a cluster with two instances that run in it, and its owner's actions."""

    def __init__(self, account: EmulatedAws, cluster: Cluster) -> None:
        self.id = f"cr-eeee{next(_numbers):013x}"
        ec2, subnet = client("ec2", REGION), cluster.manifest.groups[0].subnets[0].id
        zone = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["AvailabilityZone"]
        seed = SeedReservation(id=self.id, instance_type="c7i.xlarge", zone=zone, count=2, interruptible=True)
        account.seed(AccountSeed(region=REGION, reservations=(seed,)))
        launched = ec2.run_instances(
            ImageId=ubuntu_image_id(REGION),
            InstanceType="c7i.xlarge",
            SubnetId=subnet,
            MinCount=2,
            MaxCount=2,
            InstanceMarketOptions={"MarketType": MARKET},
            CapacityReservationSpecification={"CapacityReservationTarget": {"CapacityReservationId": self.id}},
        )
        self.source = str(find_source(REGION, self.id))
        self.instances = [instance["InstanceId"] for instance in launched["Instances"]]

    def reclaim(self, target: int, preference: str = "retain") -> None:
        client("ec2", REGION).update_interruptible_capacity_reservation_allocation(
            CapacityReservationId=self.source, TargetInstanceCount=target, ZeroSizePreference=preference
        )

    def release(self, account: EmulatedAws) -> None:
        """Cancel both reservations: they would limit the capacity of other tests."""
        client("ec2", REGION).terminate_instances(InstanceIds=self.instances)
        account.advance_clock(125)  # a reclaim in progress completes
        self.reclaim(0, "default")
        cancel_reservation(REGION, self.source)


@pytest.fixture(scope="module")
def account(own_account: EmulatedAws) -> EmulatedAws:
    """An account of this file, because the tests advance its clock."""
    return own_account


@pytest.fixture
def cluster(account: EmulatedAws) -> Cluster:
    return create_cluster(REGION)


@pytest.fixture
def reservation(account: EmulatedAws, cluster: Cluster) -> Iterator[Reservation]:
    reservation = Reservation(account, cluster)
    group = cluster.manifest.groups[0].model_copy(update={"market": MARKET, "reservation": reservation.id})
    cluster.set_groups((group,))
    yield reservation
    account.clear_faults()
    reservation.release(account)


@pytest.fixture
def run(cluster: Cluster, reservation: Reservation) -> Run:
    """A run whose first attempt has started."""
    run = Run(cluster)
    run.step("ready", 0)
    run.step("workers_up", 1)
    return run


def requests(run: Run) -> int:
    run.step_with_members()
    control = run.control()
    assert control is not None
    assert control.attempt == 1
    return control.checkpoint_requests


def test_each_reclaim_requests_one_checkpoint(run: Run, account: EmulatedAws, reservation: Reservation) -> None:
    assert requests(run) == 0
    reservation.reclaim(1)
    assert (requests(run), requests(run)) == (1, 1)
    account.advance_clock(125)
    assert requests(run) == 1
    reservation.reclaim(0)
    assert requests(run) == 2


def test_additional_instances_request_no_checkpoint(run: Run, account: EmulatedAws, reservation: Reservation) -> None:
    reservation.reclaim(1)
    account.advance_clock(125)
    assert requests(run) == 0  # the reclaim was over before the controller read the reservation
    reservation.reclaim(2)
    assert requests(run) == 0


def test_unreadable_reservation_does_not_end_the_run(
    run: Run, account: EmulatedAws, reservation: Reservation, caplog: pytest.LogCaptureFixture
) -> None:
    account.inject(Deny(operation="ec2:DescribeCapacityReservations"))
    assert requests(run) == 0
    assert reservation.id in caplog.text
    account.clear_faults()
    reservation.reclaim(1)
    assert requests(run) == 1
