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

from rehearsal.aws import (
    bucket_policies,
    control,
    dependencies,
    fsx,
    groups,
    images,
    instances,
    interfaces,
    launch_instances,
    placement,
    schedules,
    security_rules,
)
from rehearsal.aws.interfaces import Addresses
from rehearsal.aws.journal import Journal
from rehearsal.aws.launch import Launcher
from rehearsal.aws.operations import Call, call_of

ACCOUNT = "123456789012"
StartResponse = Callable[..., Any]


class Account:
    """The WSGI application. moto's backends are not made for threads: S3's calls take turns, and so do the others."""

    def __init__(self, journal: Journal, region: str, addresses: IPv4Network | None) -> None:
        """`region` has its default VPC from the start: in AWS it needs no first call. `addresses`: see instances."""
        self._about = [{"journal": str(journal.path), "region": region}]
        self._journal = journal
        _extend(Launcher(Addresses(addresses) if addresses else None))
        ec2_backends[ACCOUNT][region]
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = threading.Lock()
        self._s3_lock = threading.Lock()
        # GetResources reads the buckets' tags.
        self._turns = {"s3": [self._s3_lock], "tag": [self._lock, self._s3_lock]}

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path.startswith("/_rehearsal/"):
            return self._control(path.removeprefix("/_rehearsal/"), start_response)
        call = call_of(environ, environ["wsgi.input"].getvalue())
        status, headers, body = self._answer(call, environ)
        self._journal.write(call, environ, int(status.split()[0]), body)
        start_response(status, headers)
        return [body]

    def _answer(self, call: Call, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        told: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> Callable[[bytes], Any]:
            told[:] = [status, headers]
            return lambda data: None

        try:
            with ExitStack() as turns:
                for lock in self._turns.get(call.service, [self._lock]):
                    turns.enter_context(lock)
                if call.service != "s3":
                    fsx.pass_time()
                body = b"".join(self._moto(environ, start))
        except NotImplementedError as error:
            return _refusal(call, "501 Not Implemented", "NotImplemented", f"{call.service}:{call.operation}: {error}")
        except Exception as error:
            traceback.print_exc()
            message = f"{call.service}:{call.operation}: {type(error).__name__}: {error}"
            return _refusal(call, "500 Internal Server Error", "InternalFailure", message)
        return told[0], told[1], body

    def _control(self, page: str, start_response: StartResponse) -> Iterable[bytes]:
        with self._lock, self._s3_lock:
            fsx.pass_time()
            pages = {"about": lambda: self._about, **control.PAGES}
            content = pages[page]() if page in pages else None
        body = json.dumps(content).encode()
        status = "404 Not Found" if content is None else "200 OK"
        start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
        return [body]


def _extend(launcher: Launcher) -> None:
    bucket_policies.install()
    placement.install()
    interfaces.install()
    images.install()
    dependencies.install()
    security_rules.install()
    instances.install(launcher)
    groups.install(launcher)
    launch_instances.install(launcher)
    schedules.install()
    fsx.install()


_JSON_SERVICES = {"fsx", "ssm", "tag", "kms", "logs", "budgets"}


def _refusal(call: Call, status: str, code: str, message: str) -> tuple[str, list[tuple[str, str]], bytes]:
    """A failure of the emulation itself, in the shape that the service's clients read."""
    escaped = message.replace("&", "&amp;").replace("<", "&lt;")
    error = f"<Error><Code>{code}</Code><Message>{escaped}</Message></Error>"
    if call.service in _JSON_SERVICES:
        body = json.dumps({"__type": code, "message": message})
    elif call.service == "s3":
        body = error
    elif call.service == "ec2":
        body = f"<Response><Errors>{error}</Errors></Response>"
    else:
        body = f"<ErrorResponse>{error}</ErrorResponse>"
    return status, [("Content-Length", str(len(body.encode())))], body.encode()
