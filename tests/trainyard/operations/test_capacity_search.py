"""The search for capacity when a request has no response: no unknown reservation remains."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from rehearsal.aws.faults import Capacity, Outage
from rehearsal.aws.process import EmulatedAws
from tests.conftest import REGION
from tests.trainyard.operations.conftest import RecordingDisplay
from trainyard.aws import tags
from trainyard.aws.clients import client
from trainyard.aws.reservations import CapacityReservation, cancel_reservation, find_reservations
from trainyard.operations import capacity_search
from trainyard.operations.capacity_search import CapacityRequest, reserve_capacity
from trainyard.operations.errors import CapacityError

ZONE_A, ZONE_B = "us-east-1a", "us-east-1b"
_numbers = itertools.count(1)
AfterCreation = Callable[[Callable[[dict[str, Any]], None]], None]


@pytest.fixture
def request_of_two(account: EmulatedAws, monkeypatch: pytest.MonkeyPatch) -> Iterator[CapacityRequest]:
    """A request for two instances in two zones."""
    monkeypatch.setattr(capacity_search, "RETRY_DELAY_SECONDS", 0.0)
    created = CapacityRequest(
        stack="test",
        region=REGION,
        instance_type="c7i.xlarge",
        instances=2,
        zones=(ZONE_A, ZONE_B),
        placement_group_arn=None,
        tags={tags.STACK: f"search-{next(_numbers)}", tags.ROLE: "workers"},
        launch_id="launch",
        hold_seconds=1200,
        usd_per_hour=1.0,
        wait_minutes=0,
    )
    yield created
    account.clear_faults()
    for reservation in active(created):
        cancel_reservation(REGION, reservation.id)


def active(request: CapacityRequest) -> list[CapacityReservation]:
    return find_reservations(REGION, request.tags)


@pytest.fixture
def after_creation(monkeypatch: pytest.MonkeyPatch) -> AfterCreation:
    """Call a function with the parameters of each request, after EC2 has created its reservation."""
    ec2 = client("ec2", REGION, max_attempts=1)
    create = ec2.create_capacity_reservation

    def replace(act: Callable[[dict[str, Any]], None]) -> None:
        def create_and_act(**parameters: Any) -> Any:
            response = create(**parameters)
            act(parameters)
            return response

        monkeypatch.setattr(ec2, "create_capacity_reservation", create_and_act)

    return replace


def time_out(parameters: dict[str, Any]) -> None:
    raise ReadTimeoutError(endpoint_url="https://ec2.us-east-1.amazonaws.com")


def test_request_without_a_response_is_repeated(request_of_two: CapacityRequest, after_creation: AfterCreation) -> None:
    requests, display = itertools.count(1), RecordingDisplay()
    after_creation(lambda parameters: time_out(parameters) if next(requests) == 1 else None)
    reservation = reserve_capacity(request_of_two, display)
    assert [each.id for each in active(request_of_two)] == [reservation.id]
    assert not any("cancelled" in line for line in display.lines)  # the repetition created no second reservation


def test_server_error_is_repeated_in_its_zone(account: EmulatedAws, request_of_two: CapacityRequest) -> None:
    account.inject(Outage(operation="ec2:CreateCapacityReservation", times=2))
    assert reserve_capacity(request_of_two, RecordingDisplay()).zone == ZONE_A


def test_reservation_is_cancelled_when_its_creation_had_no_response(
    request_of_two: CapacityRequest, after_creation: AfterCreation
) -> None:
    after_creation(lambda parameters: time_out(parameters) if parameters["AvailabilityZone"] == ZONE_A else None)
    display = RecordingDisplay()
    reservation = reserve_capacity(request_of_two, display)
    assert [(each.id, each.zone) for each in active(request_of_two)] == [(reservation.id, ZONE_B)]
    assert ", which the launch does not use: EC2 did not respond to its creation" in display.lines[-1]


def test_reservation_of_an_interrupted_request_is_cancelled(
    request_of_two: CapacityRequest, after_creation: AfterCreation
) -> None:
    def interrupt(parameters: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    after_creation(interrupt)
    with pytest.raises(KeyboardInterrupt):
        reserve_capacity(request_of_two, RecordingDisplay())
    assert active(request_of_two) == []


def test_error_that_ends_the_search_names_its_zone_and_the_refusals_before(
    account: EmulatedAws, request_of_two: CapacityRequest, after_creation: AfterCreation
) -> None:
    def deny(parameters: dict[str, Any]) -> None:
        raise ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": "No."}}, "CreateCapacityReservation")

    account.inject(Capacity(limit=0, instance_type="c7i.xlarge", zone=ZONE_A))
    after_creation(deny)
    with pytest.raises(CapacityError) as caught:
        reserve_capacity(request_of_two, RecordingDisplay())
    assert str(caught.value).startswith(f"AWS does not reserve 2 x c7i.xlarge in {ZONE_B}: ")
    assert str(caught.value).endswith(f"; no capacity in {ZONE_A}: InsufficientInstanceCapacity")
