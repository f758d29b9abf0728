"""Session Manager: StartSession and TerminateSession, which moto does not have. The session itself is not emulated.

Source: https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_StartSession.html
"""

import uuid
from typing import Any

from moto.core.exceptions import JsonRESTError
from moto.core.responses import ActionResult
from moto.ec2.models import ec2_backends
from moto.iam.models import iam_backends
from moto.ssm.responses import SimpleSystemManagerResponse

from rehearsal.aws.account_state import role_name
from rehearsal.aws.ec2.request_paths import NoRouteError, instance_path
from rehearsal.aws.iam.callers import role_policies
from rehearsal.aws.iam.policies import AccessRequest, evaluate_policies
from rehearsal.aws.moto_extension import extend

_SHELL = "SSM-SessionManagerRunShell"
_DOCUMENTS = frozenset([_SHELL, "AWS-StartInteractiveCommand", "AWS-StartNonInteractiveCommand"])
# The SSM agent registers itself with the first action and opens the session with the others.
_AGENT_ACTIONS = ("ssm:UpdateInstanceInformation", "ssmmessages:CreateControlChannel", "ssmmessages:OpenDataChannel")


def install() -> None:
    """Extend moto."""
    extend(SimpleSystemManagerResponse, start_session, terminate_session)


def start_session(self: Any) -> ActionResult:
    """Return the id, the token and the URL of a session on a connected instance."""
    target, document = self._get_param("Target"), self._get_param("DocumentName") or _SHELL
    if document not in _DOCUMENTS:
        raise JsonRESTError("InvalidDocument", f"Document with name {document} does not exist.")
    instance = ec2_backends[self.current_account][self.region].get_instance(target) if _is_known(self, target) else None
    if instance is None or instance.state != "running" or not _has_agent_permissions(instance):
        raise JsonRESTError("TargetNotConnected", f"{target} is not connected.")
    session = f"rehearsal-{uuid.uuid4().hex[:17]}"
    url = f"wss://ssmmessages.{self.region}.amazonaws.com/v1/data-channel/{session}?role=publish_subscribe"
    return ActionResult({"SessionId": session, "TokenValue": uuid.uuid4().hex, "StreamUrl": url})


def terminate_session(self: Any) -> ActionResult:
    """Return the id of the session, which AWS ends."""
    return ActionResult({"SessionId": self._get_param("SessionId")})


def _is_known(response: Any, target: str) -> bool:
    backend = ec2_backends[response.current_account][response.region]
    return any(instance.id == target for instance in backend.all_instances())


def _has_agent_permissions(instance: Any) -> bool:
    """Return whether the role of the instance has the permissions of the SSM agent, in the network of the instance."""
    backend, name = instance.ec2_backend, role_name(instance)
    if name is None:
        return False
    policies = list(role_policies(iam_backends[backend.account_id][backend.partition], name))
    try:
        path = instance_path(instance.id, "ssm", backend.region_name)
    except NoRouteError:
        return False
    context = {"aws:viaawsservice": "false", **(path.context if path else {})}
    requests = (AccessRequest(action, "*", context) for action in _AGENT_ACTIONS)
    return all(evaluate_policies(policies, request) == "Allow" for request in requests)
