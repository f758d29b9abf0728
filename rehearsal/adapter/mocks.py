"""The front on the SDK's own `set_mocks`: runs the unmodified program without the Pulumi CLI."""

import asyncio
import contextvars
import json
import logging
import runpy
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pulumi
import yaml
from google.protobuf import empty_pb2  # type: ignore[import-untyped]
from pulumi.runtime import config, mocks, proto, rpc, settings, stack, sync_await

from rehearsal.adapter.account import Account, Adapter
from rehearsal.adapter.errors import AdapterError
from rehearsal.adapter.graph import STACK_TYPE, Deployment, Event, Resource
from rehearsal.adapter.pool import settled, some_done
from trainyard.base import InputError

PROJECT = "trainyard"
_THREADS = 16
_AUTONAMED = {"aws:s3/bucket:Bucket": "bucket"}  # types that can be adopted -> the input that the engine names
_ONE_AT_A_TIME = threading.Lock()  # the SDK keeps its settings per process

OnEvent = Callable[[Event], None]


class UpFailed(Exception):
    """The program failed. `deployment` holds what was made until then: destroy takes it down."""

    def __init__(self, message: str, deployment: Deployment) -> None:
        super().__init__(message)
        self.deployment = deployment


def up(
    stack_file: Path | Mapping[str, Any],
    stack_name: str,
    root: Path,
    *,
    preview: bool = False,
    account: Account | None = None,
    on_event: OnEvent = lambda event: None,
    begun: Callable[[Deployment], None] = lambda deployment: None,
) -> Deployment:
    """Run `infra/__main__.py` of the tree `root` and make what it registers.

    `stack_file` is a Pulumi.<stack>.yaml, or its `config` as a mapping. `account` is where things are made, by default
    the emulated AWS in the stack's region. `preview` makes nothing: look-ups are answered, and outputs are unknown.
    The program has a thread of its own: a KeyboardInterrupt, when it comes through, has let it end what it had begun;
    what was made stands in the graph that `begun` received.
    Raises InputError for what the user can mend, and UpFailed, which carries the graph, for everything else.
    """
    values = stack_file if isinstance(stack_file, Mapping) else _config_of(stack_file)
    region = str(values.get("aws:region", "us-east-1"))
    deployment = Deployment(stack=stack_name, root=root, account=account or Adapter(region), preview=preview)
    begun(deployment)
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    monitor = Monitor(deployment, on_event)
    with _ONE_AT_A_TIME, settled(ThreadPoolExecutor(1, thread_name_prefix="program")) as thread:
        try:
            (program,) = some_done([thread.submit(contextvars.copy_context().run, _run, deployment, texts, monitor)])
            program.result()
        except KeyboardInterrupt:
            monitor.stop()
            raise
    return deployment


def _config_of(stack_file: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(stack_file.read_text()) or {}
    found: dict[str, Any] = loaded.get("config") or {}
    return found


def _run(deployment: Deployment, texts: dict[str, str], monitor: "Monitor") -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    of_threads: list[asyncio.AbstractEventLoop] = []
    executor = ThreadPoolExecutor(
        _THREADS, thread_name_prefix="up", initializer=lambda: of_threads.append(_loop_of_thread())
    )
    loop.set_default_executor(executor)
    mocks.set_mocks(
        _NoMocks(), PROJECT, deployment.stack, deployment.preview, logger=logging.getLogger(__name__), monitor=monitor
    )
    settings.set_root_resource(None)  # type: ignore[arg-type] # the last run's
    settings.SETTINGS.outputs.clear()  # what an earlier run that failed left behind belongs to a closed loop
    config.set_all_config(texts)
    program = deployment.root / "infra" / "__main__.py"
    finished = False
    try:
        with _modules_of(deployment.root):
            loop.run_until_complete(stack.run_in_stack(lambda: _start(program)))
        finished = True
    except pulumi.RunError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise UpFailed(str(error), deployment) from error
    except Exception as error:
        cause = monitor.failure or error
        raise UpFailed(str(cause), deployment) from cause
    finally:
        if not finished:
            deployment.account.stop()
        executor.shutdown(wait=True, cancel_futures=True)  # what is under way ends up in the graph
        for each in (*of_threads, loop):
            _close(each)


def _loop_of_thread() -> asyncio.AbstractEventLoop:
    """The SDK makes one where a thread has none, and closes none."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def _start(program: Path) -> None:
    runpy.run_path(str(program), run_name="__main__")


@contextmanager
def _modules_of(root: Path) -> Iterator[None]:
    """Let `infra` be that of this tree, fresh, and leave the process's modules and path as they were."""
    path = list(sys.path)
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "infra"}
    sys.path[:0] = [str(root)]
    try:
        yield
    finally:
        sys.path[:] = path
        for name in [name for name in sys.modules if name.partition(".")[0] == "infra"]:
            del sys.modules[name]
        sys.modules.update(kept)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """End what a failed run left waiting, so that nothing of it speaks up later."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    asyncio.set_event_loop(None)
    loop.close()


class LookUpRefused(grpc.RpcError):  # type: ignore[misc]
    """As a provider's refusal reaches the SDK, which hands it to the program: that may bear with it."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        return str(self)


class _NoMocks(mocks.Mocks):
    """The monitor below answers everything itself."""

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        raise AssertionError(f"{args.typ} {args.name} passed the monitor by")

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"{args.token} passed the monitor by")


class Monitor(mocks.MockMonitor):
    """Records whole requests, which `Mocks` never sees, and lets the account make the resources.

    Called from many threads at once: independent resources are made side by side.
    """

    def __init__(self, deployment: Deployment, on_event: OnEvent) -> None:
        super().__init__(_NoMocks())
        self._deployment = deployment
        self._on_event = on_event
        self._lock = threading.Lock()
        self.failure: AdapterError | None = None
        self._stopped = False

    def stop(self) -> None:
        """Let nothing new begin, and end the commands that run: the program then fails at its next step."""
        self._stopped = True
        self._deployment.account.stop()

    def _refuse_if_stopped(self, what: str) -> None:
        if self._stopped:
            raise AdapterError(f"{what}: not begun, the run was stopped before")

    def make_urn(self, parent: str, type_: str, name: str) -> str:
        """As the engine does: the types of all ancestors but the stack."""
        above = parent.split("::")[2] if parent else STACK_TYPE
        qualified = type_ if above == STACK_TYPE else f"{above}${type_}"
        return f"urn:pulumi:{self._deployment.stack}::{PROJECT}::{qualified}::{name}"

    def Invoke(self, request: Any) -> Any:
        self._refuse_if_stopped(request.tok)
        given = _plain(rpc.deserialize_properties(request.args))
        try:
            answer = self._deployment.account.look_up(request.tok, given)
        except AdapterError as error:
            raise LookUpRefused(str(error)) from error
        return proto.resource_pb2.ResourceInvokeResponse(**{"return": _wire(answer)})

    def RegisterResource(self, request: Any) -> Any:
        urn = self.make_urn(request.parent, request.type, request.name)
        if request.type == STACK_TYPE:
            return proto.resource_pb2.RegisterResourceResponse(urn=urn)
        self._refuse_if_stopped(f"{request.type} {request.name}")
        resource = Resource(
            urn=urn,
            type=request.type,
            name=request.name,
            parent=request.parent,
            dependencies=frozenset(request.dependencies),
            custom=request.custom,
            retain_on_delete=request.retainOnDelete,
            protect=request.protect,
            delete_before_replace=request.deleteBeforeReplace,
            ignore_changes=tuple(request.ignoreChanges),
            import_id=request.importId,
            inputs=_plain(rpc.deserialize_properties(request.object)),
        )
        with self._lock:
            if urn in self._deployment.resources:
                raise AdapterError(f"{resource.type} {resource.name}: the name is taken by another of its type")
            self._deployment.resources[urn] = resource
        if resource.custom and not self._deployment.preview:
            self._make(resource)
        else:
            resource.made = True
        state = {**resource.inputs, **resource.outputs}
        return proto.resource_pb2.RegisterResourceResponse(urn=urn, id=resource.id, object=_wire(state))

    def RegisterResourceOutputs(self, request: Any) -> Any:
        if request.urn.split("::")[2] == STACK_TYPE:
            self._deployment.exports.update(_plain(rpc.deserialize_properties(request.outputs)))
        return empty_pb2.Empty()

    def _make(self, resource: Resource) -> None:
        if self.failure is not None:
            raise AdapterError(f"{resource.type} {resource.name}: not begun, the run has failed before")
        account, root = self._deployment.account, self._deployment.root
        began = time.monotonic()
        self._tell("creating", resource)

        def say(line: str) -> None:
            self._tell("line", resource, text=line)

        try:
            if resource.import_id:
                _refuse_renaming(resource)
                resource.id = resource.import_id
                resource.id, resource.outputs = account.adopt(resource.subject, root, say)
            else:
                resource.id, resource.outputs = account.create(resource.subject, root, say)
        except Exception as error:
            told = (
                error
                if isinstance(error, AdapterError)
                else AdapterError(f"{resource.type} {resource.name}: {error!r}")
            )
            self._failed(told)
            self._tell("failed", resource, time.monotonic() - began, str(told))
            if told is error:
                raise
            raise told from error
        resource.seconds = time.monotonic() - began
        resource.made = True
        self._tell("adopted" if resource.adopted else "created", resource, resource.seconds)

    def _failed(self, error: AdapterError) -> None:
        with self._lock:
            self.failure = self.failure or error

    def _tell(self, kind: Any, resource: Resource, seconds: float = 0.0, text: str = "") -> None:
        self._on_event(
            Event(kind=kind, urn=resource.urn, type=resource.type, name=resource.name, seconds=seconds, text=text)
        )


def _refuse_renaming(resource: Resource) -> None:
    """As the engine: what is imported under a name that it would make anew would be replaced, and it refuses that."""
    name = _AUTONAMED.get(resource.type)
    if name and name not in resource.inputs and name not in resource.ignore_changes:
        raise AdapterError(
            f"{resource.type} {resource.name}: imported resources may not be replaced, and {name} would be named anew: "
            f"give {name}, or ignore its changes"
        )


def _wire(values: Mapping[str, Any]) -> Any:
    return sync_await._sync_await(rpc.serialize_properties(dict(values), {}))


def _plain(value: Any) -> Any:
    """Secrets unwrapped, whole numbers as int (the wire knows floats only), unknown values left out."""
    if rpc.is_rpc_secret(value):
        return _plain(value["value"])
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if not _absent(item)}
    if isinstance(value, list):
        return [_plain(item) for item in value if not _absent(item)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _absent(value: Any) -> bool:
    return value is None or isinstance(value, pulumi.output.Unknown)
