"""The two accounts that a program can be run against: the emulated AWS, and a static one that makes nothing."""

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
    keys,
    logs,
    network,
    security,
    storage,
)
from rehearsal.adapter import sns as notices
from rehearsal.adapter.command import Command
from rehearsal.adapter.errors import AdapterError, Refused, UnknownType, gone_already
from rehearsal.adapter.handler import Call, Found, Handler, Made, check_keys
from rehearsal.adapter.lookups import LOOK_UPS
from rehearsal.adapter.session import Aws


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A resource as the program registered it."""

    urn: str
    type: str
    name: str
    inputs: Mapping[str, Any]
    id: str = ""
    outputs: Mapping[str, Any] | None = None
    olds: Mapping[str, Any] | None = None  # of an update: the inputs until now


class Account(Protocol):
    """What a front needs of the account behind it. Every method raises AdapterError naming the resource."""

    def create(self, subject: Subject, root: Path, say: Callable[[str], None]) -> Made: ...

    def adopt(self, subject: Subject, root: Path, say: Callable[[str], None]) -> Made: ...

    def delete(self, subject: Subject, root: Path, say: Callable[[str], None]) -> None: ...

    def look_up(self, token: str, given: Mapping[str, Any]) -> dict[str, Any]: ...

    def stop(self) -> None: ...


class Adapter:
    """The emulated AWS, found by AWS_ENDPOINT_URL. `run_commands`: whether local commands run, or count as done."""

    def __init__(self, region: str, run_commands: bool = True) -> None:
        self.aws = Aws(region)
        self._command = Command(skip=not run_commands)
        self.handlers = handlers(self._command)

    def create(self, subject: Subject, root: Path, say: Callable[[str], None]) -> Made:
        handler = self.handler(subject)
        with self._serving(subject):
            return handler.create(self._call(subject, root, say))

    def adopt(self, subject: Subject, root: Path, say: Callable[[str], None]) -> Made:
        handler = self.handler(subject)
        with self._serving(subject):
            return handler.adopt(self._call(subject, root, say))

    def read(self, subject: Subject, root: Path) -> Found | None:
        """A thing of this id as it stands; None where there is none."""
        handler = self.handler(subject)
        with self._serving(subject):
            return handler.read(self._call(subject, root, lambda line: None))

    def update(self, subject: Subject, root: Path, say: Callable[[str], None]) -> dict[str, Any]:
        """Bring it from `olds` to `inputs`: the outputs that this changed."""
        handler = self.handler(subject)
        with self._serving(subject):
            return handler.update(self._call(subject, root, say))

    def delete(self, subject: Subject, root: Path, say: Callable[[str], None]) -> None:
        handler = self.handler(subject)
        with self._serving(subject), gone_already():
            handler.delete(self._call(subject, root, say))

    def look_up(self, token: str, given: Mapping[str, Any]) -> dict[str, Any]:
        if token not in LOOK_UPS:
            raise UnknownType(f"the adapter does not know the look-up {token}")
        spec, look_up = LOOK_UPS[token]
        check_keys(spec, given, token)
        with _told(token, ""):
            return look_up(self.aws, given)

    def stop(self) -> None:
        """End the commands that run now."""
        self._command.stop()

    def handler(self, subject: Subject) -> Handler:
        """The handler that knows the subject's type and every one of its inputs."""
        return checked(self.handlers, subject)

    def _call(self, subject: Subject, root: Path, say: Callable[[str], None]) -> Call:
        return Call(
            aws=self.aws,
            urn=subject.urn,
            type=subject.type,
            name=subject.name,
            inputs=subject.inputs,
            root=root,
            id=subject.id,
            outputs=subject.outputs or {},
            olds=subject.olds or {},
            say=say,
        )

    @contextmanager
    def _serving(self, subject: Subject) -> Any:
        with self.aws.serving(subject.urn), _told(subject.type, subject.name):
            yield


def handlers(command: Command) -> dict[str, Handler]:
    """Type token -> handler."""
    modules = (
        *(network, security, keys, storage, identity, filesystem),
        *(compute, autoscaling, logs, notices, guardrails),
    )
    known = [handler for module in modules for handler in module.HANDLERS]
    return {handler.type: handler for handler in (*known, command)}


def checked(known: Mapping[str, Handler], subject: Subject) -> Handler:
    """Raises UnknownType or UnknownKey that names the resource."""
    if subject.type not in known:
        raise UnknownType(f"{subject.name}: the adapter does not know the type {subject.type}")
    handler = known[subject.type]
    check_keys(handler.keys, subject.inputs, f"{subject.type} {subject.name}")
    return handler


@contextmanager
def _told(kind: str, name: str) -> Any:
    """Let every failure name the resource, with the API's own code and message."""
    owner = f"{kind} {name}".strip()
    try:
        yield
    except ClientError as error:
        told = error.response.get("Error", {})
        message = f"{owner}: {error.operation_name}: {told.get('Code')}: {told.get('Message')}"
        raise Refused(message) from error
    except (BotoCoreError, NotImplementedError) as error:
        said = str(error)
        raise Refused(said if said.startswith(owner) else f"{owner}: {said}") from error
    except AdapterError as error:
        if str(error).startswith(owner):
            raise
        raise type(error)(f"{owner}: {error}") from error
