"""The account's record of requests for capacity."""

from typing import Any

from rehearsal.aws.faults import Capacity
from rehearsal.aws.process import EmulatedAws
from tests.rehearsal.aws.conftest import Client
from tests.rehearsal.aws.ec2.test_reservations import clean, refused, reserve

__all__ = ["clean"]
GPU: dict[str, Any] = {"InstanceType": "p4d.24xlarge", "AvailabilityZone": "us-east-1a"}


def test_granted_and_refused_reservations_are_recorded(client: Client, aws: EmulatedAws) -> None:
    aws.inject(Capacity(limit=2, instance_type=GPU["InstanceType"]))
    assert refused(lambda: reserve(client, 3, **GPU)) == "InsufficientInstanceCapacity"
    reserve(client, 2, **GPU)
    refusal, grant = aws.capacity_requests()[-2:]
    assert (refusal.requested, refusal.granted, refusal.error_code) == (3, 0, "InsufficientInstanceCapacity")
    assert (grant.requested, grant.granted, grant.error_code) == (2, 2, None)
    assert (grant.kind, grant.instance_type, grant.zone) == ("reservation", "p4d.24xlarge", "us-east-1a")
