"""Flow logs: EC2 makes none whose role the service could not assume, and finds the log group by its ARN."""

from typing import Any

from moto.ec2.models import EC2Backend
from moto.iam.models import iam_backends
from moto.logs.models import logs_backends

from rehearsal.aws.extension import extend, refuse
from rehearsal.aws.iam.service_authorization import may_assume

_SERVICE = "vpc-flow-logs.amazonaws.com"


def install() -> None:
    make = EC2Backend.create_flow_logs

    def create_flow_logs(self: Any, *args: Any, **given: Any) -> Any:
        """Source of the refusal: https://github.com/hashicorp/terraform-provider-aws/issues/29323"""
        assert not args, "moto names all of them"
        role, destination = given.get("deliver_logs_permission_arn"), given.get("log_destination")
        if role is not None:
            _check_role(self, role)
        made, failed = make(self, **given)
        if destination and given.get("log_destination_type") in (None, "cloud-watch-logs"):
            _settle(self, made, destination)
        return made, failed

    extend(EC2Backend, create_flow_logs)


def _check_role(backend: Any, arn: str) -> None:
    roles = iam_backends[backend.account_id][backend.partition].roles.values()
    role = next((role for role in roles if role.arn == arn), None)
    source = f"arn:{backend.partition}:ec2:{backend.region_name}:{backend.account_id}:vpc-flow-log/fl-new"
    if role is None or not may_assume(role, _SERVICE, source):
        raise refuse("InvalidParameter", f"Unable to assume given IAM role: '{arn}'")


def _settle(backend: Any, made: list[Any], destination: str) -> None:
    """moto looks for the group by the name that nobody gave, and says that it is not there."""
    groups = logs_backends[backend.account_id][backend.region_name].groups.values()
    there = any(group.arn == destination.removesuffix(":*") for group in groups)
    for flow_log in made:
        flow_log.deliver_logs_status = "SUCCESS" if there else "FAILED"
        flow_log.deliver_logs_error_message = None if there else "Access error"
