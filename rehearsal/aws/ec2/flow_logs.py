"""Flow logs: EC2 checks that the service can assume their role, and looks up the log group by ARN."""

from typing import Any

from moto.ec2.models import EC2Backend
from moto.iam.models import iam_backends
from moto.logs.models import logs_backends

from rehearsal.aws.iam.service_authorization import can_assume_role
from rehearsal.aws.moto_extension import ec2_error, extend

_SERVICE = "vpc-flow-logs.amazonaws.com"


def install() -> None:
    """Add the checks to CreateFlowLogs."""
    moto_create = EC2Backend.create_flow_logs

    def create_flow_logs(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Source of the error: https://github.com/hashicorp/terraform-provider-aws/issues/29323"""
        assert not args, "moto passes keyword arguments only"
        role, destination = kwargs.get("deliver_logs_permission_arn"), kwargs.get("log_destination")
        if role is not None:
            _check_role(self, role)
        created, failed = moto_create(self, **kwargs)
        if destination and kwargs.get("log_destination_type") in (None, "cloud-watch-logs"):
            _set_delivery_status(self, created, destination)
        return created, failed

    extend(EC2Backend, create_flow_logs)


def _check_role(backend: Any, arn: str) -> None:
    roles = iam_backends[backend.account_id][backend.partition].roles.values()
    role = next((role for role in roles if role.arn == arn), None)
    source = f"arn:{backend.partition}:ec2:{backend.region_name}:{backend.account_id}:vpc-flow-log/fl-new"
    if role is None or not can_assume_role(role, _SERVICE, source):
        raise ec2_error("InvalidParameter", f"Unable to assume given IAM role: '{arn}'")


def _set_delivery_status(backend: Any, flow_logs: list[Any], destination: str) -> None:
    """Set the delivery status by the destination's ARN. moto looks up a group name, which the request does not have."""
    groups = logs_backends[backend.account_id][backend.region_name].groups.values()
    exists = any(group.arn == destination.removesuffix(":*") for group in groups)
    for flow_log in flow_logs:
        flow_log.deliver_logs_status = "SUCCESS" if exists else "FAILED"
        flow_log.deliver_logs_error_message = None if exists else "Access error"
