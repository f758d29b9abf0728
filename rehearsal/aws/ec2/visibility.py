"""Data that DescribeInstances omits: of new and terminated instances, and of those of the fault `member-omission`."""

from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import InvalidInstanceIdError
from moto.ec2.responses import EC2Response

from rehearsal.aws.active_faults import ACTIVE_FAULTS
from rehearsal.aws.ec2.transitions import ENDED_STATES
from rehearsal.aws.moto_extension import extend


def has_hidden_address(instance: Any) -> bool:
    """Return whether responses omit the interfaces and the private address of the instance."""
    return instance.state in ENDED_STATES or ACTIVE_FAULTS.has_hidden_address(instance)


def _require_visible(backend: Any, instance_ids: list[str], omitted: str | None = None) -> None:
    hidden = [name for name in instance_ids if name == omitted or ACTIVE_FAULTS.is_hidden(backend.get_instance(name))]
    if hidden:
        raise InvalidInstanceIdError(hidden)


def install() -> None:
    """Filter hidden instances from DescribeInstances and DescribeInstanceStatus."""
    moto_describe, moto_describe_status = EC2Response.describe_instances, EC2Response.describe_instance_status

    def describe_instances(self: Any) -> ActionResult:
        result: Any = moto_describe(self).result
        described = [instance.id for reservation in result["Reservations"] for instance in reservation.instances]
        omitted = ACTIVE_FAULTS.omitted_member("DescribeInstances", described)
        _require_visible(self.ec2_backend, self._get_param("InstanceIds", []), omitted)
        for reservation in result["Reservations"]:  # copies: moto's state is not changed
            reservation.instances = [
                instance
                for instance in reservation.instances
                if instance.id != omitted and not ACTIVE_FAULTS.is_hidden(instance)
            ]
        visible = [reservation for reservation in result["Reservations"] if reservation.instances]
        return ActionResult({**result, "Reservations": visible})

    def describe_instance_status(self: Any) -> ActionResult:
        result: Any = moto_describe_status(self).result
        _require_visible(self.ec2_backend, self._get_param("InstanceIds", []))
        visible = [entry for entry in result["InstanceStatuses"] if not ACTIVE_FAULTS.is_hidden(entry)]
        return ActionResult({**result, "InstanceStatuses": visible})

    extend(EC2Response, describe_instances, describe_instance_status)
