"""The server: moto's dispatcher behind the journal, and the control pages that no AWS has."""

import json
import threading
import traceback
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from ipaddress import IPv4Network
from typing import Any

from moto.ec2.models import ec2_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

from rehearsal.aws import cloudcontrol
from rehearsal.aws import control_pages as pages
from rehearsal.aws.autoscaling import activities, groups, launch_instances, lifecycle, members, schedules, service_roles
from rehearsal.aws.clock import CLOCK
from rehearsal.aws.ec2 import (
    dependencies,
    endpoints,
    flow_logs,
    images,
    instances,
    interfaces,
    own_images,
    placement,
    quotas,
    reservations,
    security_rules,
    spot,
    visibility,
)
from rehearsal.aws.ec2 import reservation_actions as reservation_calls
from rehearsal.aws.ec2.interfaces import Addresses
from rehearsal.aws.ec2.launch import Launcher
from rehearsal.aws.iam import boundaries
from rehearsal.aws.iam.authorization import rights
from rehearsal.aws.iam.callers import caller_of
from rehearsal.aws.injection import INJECTED, Refusal
from rehearsal.aws.journal import ROLE, Journal
from rehearsal.aws.monitoring import alarms, budgets, log_groups
from rehearsal.aws.monitoring import sns as notices
from rehearsal.aws.operations import Call, call_of
from rehearsal.aws.process import ACCOUNT
from rehearsal.aws.storage import bucket_policies, encryption, fsx, fsx_links, keys, object_lifecycle

StartResponse = Callable[..., Any]


class Account:
    """The WSGI application. moto's backends are not made for threads: S3's calls take turns, and so do the others."""

    def __init__(self, journal: Journal, region: str, addresses: IPv4Network | None) -> None:
        """`region` has its default VPC from the start: in AWS it needs no first call. `addresses`: see instances."""
        self._about = [
            {"journal": str(journal.path), "region": region, "addresses": str(addresses) if addresses else "subnets"}
        ]
        self._journal = journal
        _extend(Launcher(Addresses(addresses) if addresses else None))
        INJECTED.add_denials()
        ec2_backends[ACCOUNT][region]
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._s3_lock = threading.Lock()
        # GetResources reads the buckets' tags.
        self._turns = {"s3": [self._s3_lock], "tag": [self._lock, self._s3_lock]}

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path.startswith("/_rehearsal/"):
            return self._control(environ, start_response)
        call = call_of(environ, environ["wsgi.input"].getvalue())
        status, headers, body = self._answer(call, environ)
        self._journal.write(call, environ, int(status.split()[0]), body)
        start_response(status, headers)
        return [body]

    def _answer(self, call: Call, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        told: list[Any] = []
        in_json = "HTTP_X_AMZ_TARGET" in environ

        def start(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> Callable[[bytes], Any]:
            told[:] = [status, headers]
            return lambda data: None

        try:
            with ExitStack() as turns:
                for lock in self._turns.get(call.service, [self._lock]):
                    turns.enter_context(lock)
                if call.service != "s3":
                    CLOCK.pass_time()
                caller = caller_of(call, in_json)
                environ[ROLE] = caller.role if caller else None
                INJECTED.check_call(call, in_json)
                with rights(caller, call, environ):
                    if call.service == cloudcontrol.SERVICE:
                        body = cloudcontrol.answer(call, environ["wsgi.input"].getvalue())
                        told = ["200 OK", [("Content-Length", str(len(body)))]]
                    else:
                        body = b"".join(self._moto(environ, start))
        except Refusal as refusal:
            return _refused(call, in_json, refusal)
        except NotImplementedError as error:
            message = f"{call.service}:{call.operation}: {error}"
            return _refused(call, in_json, Refusal("501 Not Implemented", "NotImplemented", message))
        except Exception as error:
            traceback.print_exc()
            message = f"{call.service}:{call.operation}: {type(error).__name__}: {error}"
            return _refused(call, in_json, Refusal("500 Internal Server Error", "InternalFailure", message))
        return told[0], told[1], body

    def _control(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        asked = environ["PATH_INFO"].removeprefix("/_rehearsal/"), environ["REQUEST_METHOD"]
        known: dict[tuple[str, str], pages.Page] = {**pages.PAGES, ("about", "GET"): lambda _: self._about}
        status: str = "200 OK"
        content: Any
        with self._lock, self._s3_lock:
            CLOCK.pass_time()
            if asked in known:
                try:
                    content = known[asked](environ["wsgi.input"].getvalue())
                except ValueError as error:
                    status, content = "400 Bad Request", {"error": str(error)}
            elif any(asked[0] == page for page, _ in known):
                status, content = "405 Method Not Allowed", {"error": f"no {asked[1]} of this page"}
            else:
                status, content = "404 Not Found", {"error": "no such page"}
        body = json.dumps(content).encode()
        start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def _extend(launcher: Launcher) -> None:
    bucket_policies.install()
    object_lifecycle.install()
    boundaries.install()
    placement.install()
    reservations.install()
    reservation_calls.install()
    quotas.install()
    spot.install()
    interfaces.install()
    images.install()
    own_images.install()
    dependencies.install()
    endpoints.install()
    security_rules.install()
    instances.install(launcher)
    visibility.install()
    lifecycle.install()
    members.install(launcher)
    activities.install()
    groups.install()
    service_roles.install()
    launch_instances.install(launcher)
    schedules.install()
    fsx.install()
    keys.install()
    fsx_links.install()
    encryption.install()
    log_groups.install()
    flow_logs.install()
    notices.install()
    alarms.install()
    budgets.install()


def _refused(call: Call, in_json: bool, refusal: Refusal) -> tuple[str, list[tuple[str, str]], bytes]:
    """A refusal that moto knows nothing of, in the shape that the service's clients read."""
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
