"""The account that the program runs against: the interface, and the implementation on the emulated AWS."""

from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from botocore.exceptions import BotoCoreError, ClientError

from rehearsal.adapter import (
    autoscaling,
    compute,
    filesystem,
    guardrails,
    identity,
    kms,
    logs,
    network,
    scheduler,
    security,
    sns,
    storage,
)
from rehearsal.adapter.aws_clients import AwsClients
from rehearsal.adapter.command import Command
from rehearsal.adapter.errors import AdapterError, RequestFailedError, UnsupportedTypeError, ignore_missing
from rehearsal.adapter.handler import CreateResult, Handler, HandlerCall, ReadResult, check_input_keys
from rehearsal.adapter.lookups import LOOKUPS


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """A request of the engine for one resource. `old_inputs`: the previous inputs, for an update."""

    urn: str
    type: str
    name: str
    inputs: Mapping[str, Any]
    id: str = ""
    outputs: Mapping[str, Any] | None = None
    old_inputs: Mapping[str, Any] | None = None


class Account(Protocol):
    """An AWS account as the engine's front ends use it. Every method raises AdapterError that names the resource.

    `folder`: the program's, in which commands run. `on_output`: receives each line of output of a local command.
    """

    def create(self, request: ResourceRequest, folder: Path, on_output: Callable[[str], None]) -> CreateResult:
        """Create a resource, and return its id and its outputs."""

    def import_resource(self, request: ResourceRequest, folder: Path, on_output: Callable[[str], None]) -> CreateResult:
        """Import the existing resource `request.id`, and return its id and its outputs."""

    def delete(self, request: ResourceRequest, folder: Path, on_output: Callable[[str], None]) -> None:
        """Delete a resource."""

    def invoke(self, token: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of the provider function `token`, such as aws:ec2/getVpc:getVpc."""

    def stop(self) -> None:
        """Stop the local commands that are running."""


class EmulatedAccount:
    """The emulated AWS at AWS_ENDPOINT_URL.

    `run_commands`: whether local commands run; otherwise they count as successful without output. `session`: boto3
    session with the credentials of the calls; None: those that are allowed everything.
    """

    def __init__(self, region: str, run_commands: bool = True, session: Any = None) -> None:
        self.aws = AwsClients(region, session)
        self._command = Command(skip=not run_commands)
        self.handlers = handlers(self._command)

    def create(self, request: ResourceRequest, folder: Path, on_output: Callable[[str], None]) -> CreateResult:
        """Create a resource, and return its id and its outputs."""
        handler = self.handler(request)
        with self._requests_for(request):
            return handler.create(self._call(request, folder, on_output))

    def import_resource(self, request: ResourceRequest, folder: Path, on_output: Callable[[str], None]) -> CreateResult:
        """Import the existing resource `request.id`, and update the inputs that differ."""
        handler = self.handler(request)
        with self._requests_for(request):
            return handler.import_resource(self._call(request, folder, on_output))

    def read(self, request: ResourceRequest, folder: Path) -> ReadResult | None:
        """Return the current state of the resource `request.id`, or None when it does not exist."""
        handler = self.handler(request)
        with self._requests_for(request):
            return handler.read_existing(self._call(request, folder, lambda line: None))

    def update(self, request: ResourceRequest, folder: Path, on_output: Callable[[str], None]) -> dict[str, Any]:
        """Update a resource from `request.old_inputs` to `request.inputs`, and return the changed outputs."""
        handler = self.handler(request)
        with self._requests_for(request):
            return handler.update(self._call(request, folder, on_output))

    def delete(self, request: ResourceRequest, folder: Path, on_output: Callable[[str], None]) -> None:
        """Delete a resource. A resource that no longer exists is no error."""
        handler = self.handler(request)
        with self._requests_for(request), ignore_missing():
            handler.delete(self._call(request, folder, on_output))

    def invoke(self, token: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of the provider function `token`, such as aws:ec2/getVpc:getVpc."""
        if token not in LOOKUPS:
            raise UnsupportedTypeError(f"the adapter does not support the function {token}")
        supported, lookup = LOOKUPS[token]
        check_input_keys(supported, arguments, token)
        with _naming_errors(token, ""):
            return lookup(self.aws, arguments)

    def stop(self) -> None:
        """Stop the local commands that are running."""
        self._command.stop()

    def handler(self, request: ResourceRequest) -> Handler:
        """Return the handler of the request's type. Raises an error when it does not support one of the inputs."""
        return select_handler(self.handlers, request)

    def _call(self, request: ResourceRequest, folder: Path, on_output: Callable[[str], None]) -> HandlerCall:
        return HandlerCall(
            aws=self.aws,
            urn=request.urn,
            type=request.type,
            name=request.name,
            inputs=request.inputs,
            folder=folder,
            id=request.id,
            outputs=request.outputs or {},
            old_inputs=request.old_inputs or {},
            on_output=on_output,
        )

    @contextmanager
    def _requests_for(self, request: ResourceRequest) -> Any:
        with self.aws.requests_for(request.urn), _naming_errors(request.type, request.name):
            yield


def handlers(command: Command) -> dict[str, Handler]:
    """Return the handlers by type token."""
    modules = (
        *(network, security, kms, storage, identity, filesystem),
        *(compute, autoscaling, scheduler, logs, sns, guardrails),
    )
    aws_handlers = [handler for module in modules for handler in module.HANDLERS]
    return {handler.type: handler for handler in (*aws_handlers, command)}


def select_handler(handlers: Mapping[str, Handler], request: ResourceRequest) -> Handler:
    """Return the handler of the request's type.

    Raises UnsupportedTypeError or UnsupportedInputError, which name the resource.
    """
    if request.type not in handlers:
        raise UnsupportedTypeError(f"{request.name}: the adapter does not support the type {request.type}")
    handler = handlers[request.type]
    check_input_keys(handler.keys, request.inputs, f"{request.type} {request.name}")
    return handler


@contextmanager
def _naming_errors(kind: str, name: str) -> Any:
    """Convert errors to AdapterError whose message names the resource and has the API's error code and message."""
    owner = f"{kind} {name}".strip()
    try:
        yield
    except ClientError as error:
        details = error.response.get("Error", {})
        message = f"{owner}: {error.operation_name}: {details.get('Code')}: {details.get('Message')}"
        raise RequestFailedError(message) from error
    except (BotoCoreError, NotImplementedError) as error:
        message = str(error)
        raise RequestFailedError(message if message.startswith(owner) else f"{owner}: {message}") from error
    except AdapterError as error:
        if str(error).startswith(owner):
            raise
        raise type(error)(f"{owner}: {error}") from error
