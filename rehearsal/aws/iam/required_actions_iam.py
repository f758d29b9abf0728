"""The resource and the condition keys of IAM actions on roles, instance profiles and policies.

https://docs.aws.amazon.com/service-authorization/latest/reference/list_awsidentityandaccessmanagementiam.html
"""

from collections.abc import Iterator
from typing import Any

from moto.iam.models import iam_backends

from rehearsal.aws.iam.policies import AccessRequest
from rehearsal.aws.operations import Call
from rehearsal.aws.process import ACCOUNT

Parameters = dict[str, list[str]]
# Actions with the condition key iam:PermissionsBoundary: that of the request at creation and change, else of the role.
_BOUNDARY_ACTIONS = frozenset(
    [
        "AttachRolePolicy",
        "CreateRole",
        "DeleteRolePolicy",
        "DetachRolePolicy",
        "PutRolePermissionsBoundary",
        "PutRolePolicy",
    ]
)


def iam_request(operation: str, parameters: Parameters) -> AccessRequest:
    """Return the access request of a call of IAM; without a resource for one that names none of these."""
    resource, action = _resource(operation, parameters), f"iam:{operation}"
    if operation not in _BOUNDARY_ACTIONS:
        return AccessRequest(action, resource)
    requested = _value(parameters, "PermissionsBoundary")
    role = _find_role(_value(parameters, "RoleName"))
    boundary = requested or (role.permissions_boundary_arn if role else None)
    return AccessRequest(action, resource, {"iam:permissionsboundary": boundary})


def pass_role(role_arn: str, service: str) -> AccessRequest:
    """Return the access request for a role that a caller passes to an AWS service.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_use_passrole.html
    """
    return AccessRequest("iam:PassRole", role_arn, {"iam:passedtoservice": f"{service}.amazonaws.com"})


def passed_roles(call: Call, parameters: Parameters) -> Iterator[AccessRequest]:
    """Yield the access requests for the roles that a call of IAM or EC2 passes to a service."""
    if call.operation == "AddRoleToInstanceProfile" and (role := _find_role(_value(parameters, "RoleName"))):
        yield pass_role(role.arn, "ec2")
    elif call.operation == "CreateFlowLogs" and (arn := _value(parameters, "DeliverLogsPermissionArn")):
        yield pass_role(arn, "vpc-flow-logs")


def _resource(operation: str, parameters: Parameters) -> str | None:
    """Return the ARN of the resource: an existing resource has its path; at creation the request has it."""
    backend: Any = iam_backends[ACCOUNT]["aws"]
    path = _value(parameters, "Path") or "/"
    if name := _value(parameters, "InstanceProfileName"):
        profiles = list(backend.instance_profiles.values())
        existing = next((each for each in profiles if each.name == name), None)
        return str(existing.arn) if existing else f"arn:aws:iam::{ACCOUNT}:instance-profile{path}{name}"
    if name := _value(parameters, "RoleName"):
        existing = _find_role(name)
        return str(existing.arn) if existing else f"arn:aws:iam::{ACCOUNT}:role{path}{name}"
    if arn := _value(parameters, "PolicyArn"):
        return arn
    if operation == "CreatePolicy":
        return f"arn:aws:iam::{ACCOUNT}:policy{path}{_value(parameters, 'PolicyName')}"
    return None


def _find_role(name: str | None) -> Any:
    backend: Any = iam_backends[ACCOUNT]["aws"]
    return next((role for role in list(backend.roles.values()) if role.name == name), None)


def _value(parameters: Parameters, name: str) -> str | None:
    return parameters.get(name, [None])[0]
