"""The WSGI application: moto with a journal, faults and authorization, and the control API."""

import hmac
import json
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from http import HTTPStatus
from ipaddress import IPv4Network
from typing import Any

from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from rehearsal.aws import cloudcontrol, control_endpoints, scheduler, sessions
from rehearsal.aws.account_file import TOKEN_HEADER, AccountSecrets
from rehearsal.aws.active_faults import ACTIVE_FAULTS, ApiError
from rehearsal.aws.autoscaling import (
    activities,
    groups,
    health_checks,
    instance_refresh,
    launch_instances,
    lifecycle,
    members,
    scheduled_actions,
    service_roles,
)
from rehearsal.aws.clock import CLOCK
from rehearsal.aws.ec2 import (
    account_images,
    assessment,
    block_extensions,
    block_offerings,
    block_payments,
    block_terminations,
    dependencies,
    endpoints,
    flow_logs,
    instances,
    interfaces,
    interruptible,
    interruptible_actions,
    placement,
    public_images,
    quotas,
    reference,
    reservation_actions,
    reservations,
    security_rules,
    spot,
    status_checks,
    terminations,
    topology,
    transitions,
    visibility,
)
from rehearsal.aws.ec2.interfaces import Addresses
from rehearsal.aws.ec2.launch import Launcher
from rehearsal.aws.ec2.request_paths import NoRouteError
from rehearsal.aws.http import HEADERS
from rehearsal.aws.iam import boundaries, role_sessions
from rehearsal.aws.iam.authorization import authorized
from rehearsal.aws.iam.callers import identify_caller
from rehearsal.aws.iam.signatures import Request, verify_signature
from rehearsal.aws.journal import ROLE, Journal
from rehearsal.aws.monitoring import alarms, budgets, log_groups, sns
from rehearsal.aws.operations import Call, parse_call
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage import (
    bucket_owners,
    bucket_policies,
    encryption,
    fsx,
    fsx_associations,
    keys,
    object_lifecycle,
)

StartResponse = Callable[..., Any]
_REST_JSON = frozenset(["scheduler"])  # services with errors in JSON whose requests have no X-Amz-Target
_ON_NODE = "trainyard.on-node"  # key of the WSGI environment of a request on the port for nodes


class AwsApplication:
    """The WSGI application. moto is not thread-safe: one lock serializes S3's calls, a second lock all other calls."""

    def __init__(
        self, journal: Journal, region: str, addresses: IPv4Network | None, account_secrets: AccountSecrets
    ) -> None:
        """Extend moto and create the default VPC of `region`.

        `addresses`: network of the instances' private addresses; None: from their subnets.
        """
        self._journal, self._secrets = journal, account_secrets
        _extend_moto(Launcher(Addresses(addresses) if addresses else None))
        scheduler.install(self._send)
        ACTIVE_FAULTS.add_environment_denials()
        ec2_backends[ACCOUNT][region]  # creates the default VPC, as in a new AWS account
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._s3_lock = threading.Lock()
        # GetResources reads the tags of buckets.
        self._locks = {"s3": [self._s3_lock], "tag": [self._lock, self._s3_lock]}

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Serve one request: an API call, or an endpoint of the control API below /_rehearsal/."""
        path = environ.get("PATH_INFO", "")
        if path.startswith("/_rehearsal/"):
            return self._serve_control_endpoint(environ, start_response)
        call = parse_call(environ, environ["wsgi.input"].getvalue())
        status, headers, body = self._respond(call, environ)
        self._journal.write(call, environ, int(status.split()[0]), body)
        start_response(status, headers)
        return [body]

    def serve_nodes(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Serve an API call of a node. Raises ConnectionAbortedError, so that no response is sent, without a route."""
        environ[_ON_NODE] = True
        call = parse_call(environ, environ["wsgi.input"].getvalue())
        try:
            return self(environ, start_response)
        except NoRouteError as error:
            body = f"<Error><Code>NoRoute</Code><Message>{error}</Message></Error>"
            self._journal.write(call, environ, HTTPStatus.GATEWAY_TIMEOUT, body.encode())
            raise ConnectionAbortedError(str(error)) from error

    def _respond(self, call: Call, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        response: list[Any] = []
        in_json = "HTTP_X_AMZ_TARGET" in environ or call.service in _REST_JSON

        def start(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> Callable[[bytes], Any]:
            response[:] = [status, headers]
            return lambda data: None

        try:
            with ExitStack() as locks:
                for lock in self._locks.get(call.service, [self._lock]):
                    locks.enter_context(lock)
                if call.service != "s3":
                    CLOCK.run_due_actions()
                verify_signature(self._secrets, call, in_json, _received(environ))
                caller = identify_caller(call, in_json, environ.get(_ON_NODE, False))
                environ[ROLE] = caller.role if caller else None
                ACTIVE_FAULTS.check_call(call, in_json)
                with authorized(caller, call, environ):
                    if call.service == cloudcontrol.SERVICE:
                        body = cloudcontrol.handle_call(call, environ["wsgi.input"].getvalue())
                        response = ["200 OK", [("Content-Length", str(len(body)))]]
                    else:
                        body = b"".join(self._moto(environ, start))
        except ApiError as refusal:
            return _error_response(call, in_json, refusal)
        except NotImplementedError as error:
            message = f"{call.service}:{call.operation}: {error}"
            return _error_response(call, in_json, ApiError("501 Not Implemented", "NotImplemented", message))
        except NoRouteError:
            raise
        except Exception as error:
            traceback.print_exc()
            message = f"{call.service}:{call.operation}: {type(error).__name__}: {error}"
            return _error_response(call, in_json, ApiError("500 Internal Server Error", "InternalFailure", message))
        return response[0], response[1], body

    def _send(self, environ: dict[str, Any]) -> None:
        """Serve a call that AWS makes with a role, while the locks are held: its signature is not verified."""
        call, response = parse_call(environ, environ["wsgi.input"].getvalue()), [""]

        def start(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> Callable[[bytes], Any]:
            response[0] = status
            return lambda data: None

        caller = identify_caller(call, in_json=False)
        environ[ROLE] = caller.role if caller else None
        try:
            with authorized(caller, call, environ):
                body = b"".join(self._moto(environ, start))
        except ApiError as refusal:
            response[0], _, body = _error_response(call, False, refusal)
        self._journal.write(call, environ, int(response[0].split()[0]), body)

    def _serve_control_endpoint(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        endpoint, method = environ["PATH_INFO"].removeprefix("/_rehearsal/"), environ["REQUEST_METHOD"]
        endpoints = control_endpoints.ENDPOINTS
        token = environ.get(f"HTTP_{TOKEN_HEADER.upper().replace('-', '_')}", "")
        if not hmac.compare_digest(token.encode(), self._secrets.token.encode()):
            return _json_response("403 Forbidden", {"error": f"the header {TOKEN_HEADER} is wrong"}, start_response)
        status: str = "200 OK"
        content: Any
        with self._lock, self._s3_lock:
            CLOCK.run_due_actions()
            if (endpoint, method) in endpoints:
                try:
                    content = endpoints[endpoint, method](environ["wsgi.input"].getvalue())
                except ValueError as error:
                    status, content = "400 Bad Request", {"error": str(error)}
            elif any(endpoint == name for name, _ in endpoints):
                status, content = (
                    "405 Method Not Allowed",
                    {"error": f"the endpoint {endpoint} does not support {method}"},
                )
            else:
                status, content = "404 Not Found", {"error": f"the endpoint {endpoint} does not exist"}
        return _json_response(status, content, start_response)


def _json_response(status: str, content: Any, start_response: StartResponse) -> Iterable[bytes]:
    body = json.dumps(content).encode()
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def _received(environ: dict[str, Any]) -> Request:
    """Return the request that its client signed."""
    headers = environ[HEADERS]
    url = f"http://{headers.get('Host', '')}{environ['RAW_URI']}"
    return Request(environ["REQUEST_METHOD"], url, headers, environ["wsgi.input"].getvalue())


def _extend_moto(launcher: Launcher) -> None:
    bucket_policies.install()
    bucket_owners.install()
    object_lifecycle.install()
    boundaries.install()
    role_sessions.install()
    placement.install()
    reservations.install()
    reservation_actions.install()
    assessment.install()
    interruptible.install()
    interruptible_actions.install()
    block_offerings.install()
    block_payments.install()
    block_terminations.install()
    block_extensions.install()
    quotas.install()
    spot.install()
    interfaces.install()
    reference.install()
    public_images.install()
    account_images.install()
    dependencies.install()
    endpoints.install()
    security_rules.install()
    transitions.install()
    terminations.install()
    status_checks.install()
    topology.install()
    instances.install(launcher)
    visibility.install()
    lifecycle.install()
    members.install(launcher)
    health_checks.install()
    activities.install()
    instance_refresh.install()
    groups.install()
    service_roles.install()
    launch_instances.install(launcher)
    scheduled_actions.install()
    fsx.install()
    keys.install()
    fsx_associations.install()
    encryption.install()
    log_groups.install()
    flow_logs.install()
    sns.install()
    alarms.install()
    budgets.install()
    sessions.install()


def _error_response(call: Call, in_json: bool, refusal: ApiError) -> tuple[str, list[tuple[str, str]], bytes]:
    """Format an error that moto did not raise for the protocol of the call's service."""
    escaped = refusal.message.replace("&", "&amp;").replace("<", "&lt;")
    error = f"<Error><Code>{refusal.code}</Code><Message>{escaped}</Message></Error>"
    if in_json:
        body = json.dumps({"__type": refusal.code, "message": refusal.message})
    elif call.service == "s3":
        body = error
    elif call.service == "ec2":
        body = f"<Response><Errors>{error}</Errors></Response>"
    else:
        body = f"<ErrorResponse>{error}</ErrorResponse>"
    return refusal.status, [("Content-Length", str(len(body.encode())))], body.encode()
