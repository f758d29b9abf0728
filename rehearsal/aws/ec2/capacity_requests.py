"""Records each request for capacity, a launch or a reservation, and the number of granted instances."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from moto.ec2.exceptions import EC2ClientError

from rehearsal.aws.active_faults import ApiError, InsufficientCapacityError
from rehearsal.aws.control_models import CapacityRequestRecord
from trainyard.models.report import CapacityRequestKind


@dataclass
class Grant:
    """The result of a request."""

    instances: int = 0
    error_code: str | None = None


@contextmanager
def record_request(
    backend: Any, kind: CapacityRequestKind, instance_type: str, zone: str, requested: int, tags: Mapping[str, str]
) -> Iterator[Grant]:
    """Record one request. The block sets the granted instances; its error is recorded with AWS's code."""
    grant = Grant()
    try:
        yield grant
        if grant.instances < requested:
            grant.error_code = InsufficientCapacityError(zone, instance_type).code
    except (ApiError, EC2ClientError) as error:
        grant.error_code = error.code
        raise
    finally:
        record = CapacityRequestRecord(
            kind=kind,
            instance_type=instance_type,
            zone=zone,
            requested=requested,
            granted=grant.instances,
            error_code=grant.error_code,
            tags=dict(tags),
        )
        recorded_requests(backend).append(record)


def recorded_requests(backend: Any) -> list[CapacityRequestRecord]:
    """Return the recorded requests of a region, in order."""
    records: list[CapacityRequestRecord] = vars(backend).setdefault("_capacity_requests", [])
    return records
