"""EC2 reports an instance that does not respond as impaired."""

from collections.abc import Iterator

import pytest

from rehearsal.aws.process import EmulatedAws
from rehearsal.aws.timing import Timing
from tests.rehearsal.aws.conftest import Client, Network
from tests.rehearsal.aws.ec2.test_reservations import launch, terminate_all

IMPAIRED_SECONDS = 120.0


@pytest.fixture(autouse=True)
def timing(aws: EmulatedAws, client: Client) -> Iterator[None]:
    aws.set_timing(Timing(impaired_seconds=IMPAIRED_SECONDS))
    yield
    aws.set_timing(Timing())
    terminate_all(aws, client)


def status(client: Client, name: str) -> str:
    (described,) = client("ec2").describe_instance_status(InstanceIds=[name])["InstanceStatuses"]
    assert described["SystemStatus"]["Status"] == "ok"
    return str(described["InstanceStatus"]["Status"])


def test_instance_is_impaired_some_time_after_it_stopped_to_respond(
    aws: EmulatedAws, client: Client, network: Network
) -> None:
    (name,) = launch(client, network)
    aws.report_responding(name, False)
    assert status(client, name) == "ok"
    aws.advance_clock(IMPAIRED_SECONDS + 1)
    assert status(client, name) == "impaired"
    aws.report_responding(name, True)
    assert status(client, name) == "ok"


def test_unknown_instance_is_refused(aws: EmulatedAws) -> None:
    with pytest.raises(ValueError, match="i-1 does not exist"):
        aws.report_responding("i-1", False)
