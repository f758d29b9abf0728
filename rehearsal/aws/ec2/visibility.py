"""What DescribeInstances does not show: what a terminated instance has no more, and what a new one has not yet."""

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import InvalidInstanceIdError
from moto.ec2.responses import EC2Response

from rehearsal.aws.extension import extend
from rehearsal.aws.injection import INJECTED


def without_address(instance: Any) -> bool:
    """Whether the instance is shown without its interfaces and its private address."""
    return instance.state == "terminated" or INJECTED.without_address(instance)


def _check_seen(backend: Any, asked: list[str]) -> None:
    unseen = [name for name in asked if INJECTED.unseen(backend.get_instance(name))]
    if unseen:
        raise InvalidInstanceIdError(unseen)


def install() -> None:
    describe, status = EC2Response.describe_instances, EC2Response.describe_instance_status

    def describe_instances(self: Any) -> ActionResult:
        found: Any = describe(self).result
        _check_seen(self.ec2_backend, self._get_param("InstanceIds", []))
        for reservation in found["Reservations"]:  # copies of moto's own
            reservation.instances = [each for each in reservation.instances if not INJECTED.unseen(each)]
        shown = [reservation for reservation in found["Reservations"] if reservation.instances]
        return ActionResult({**found, "Reservations": shown})

    def describe_instance_status(self: Any) -> ActionResult:
        found: Any = status(self).result
        _check_seen(self.ec2_backend, self._get_param("InstanceIds", []))
        shown = [each for each in found["InstanceStatuses"] if not INJECTED.unseen(each)]
        return ActionResult({**found, "InstanceStatuses": shown})

    extend(EC2Response, describe_instances, describe_instance_status)
