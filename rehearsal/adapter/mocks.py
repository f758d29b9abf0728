# ruff: noqa: N802 - the method names are those of the gRPC protocol
"""Runs the unmodified Pulumi program without the Pulumi CLI, with the SDK's own `set_mocks`."""

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

from rehearsal.adapter.account import Account, EmulatedAccount
from rehearsal.adapter.deployment import STACK_TYPE, Deployment, Event, Resource
from rehearsal.adapter.errors import AdapterError
from rehearsal.adapter.threads import joining_threads, wait_for_any
from trainyard.config.project import NAME
from trainyard.errors import InputError

READ_OUTPUTS = "pulumi:pulumi:readStackResourceOutputs"  # function of the engine itself
_THREADS = 16
_AUTONAMED = {"aws:s3/bucket:Bucket": "bucket"}  # importable types -> the input that the engine names
_RUN_LOCK = threading.Lock()  # the SDK has one set of settings per process

OnEvent = Callable[[Event], None]


class UpError(Exception):
    """The program failed. `deployment`: the resources created before the failure, which destroy deletes."""

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
    on_start: Callable[[Deployment], None] = lambda deployment: None,
    earlier_outputs: Mapping[str, Any] | None = None,
    program: Path | None = None,
    project: str = NAME,
) -> Deployment:
    """Run the Pulumi program with the packages of the source tree `root`, and create the resources that it registers.

    `program`: the folder of its `__main__.py`, by default `infra` in `root`. `project`: name of the Pulumi project.
    `stack_file`: a Pulumi.<stack>.yaml, or its `config` as a mapping. `account`: where resources are created; by
    default the emulated AWS in the stack's region. `preview`: create nothing; functions return results, and outputs are
    unknown. `on_start`: receives the deployment before the program starts. `earlier_outputs`: type of a component ->
    its outputs after an earlier update.
    The program runs in its own thread. After a KeyboardInterrupt this function waits for the operations in progress,
    then raises it; the deployment that `on_start` received has the resources that were created.
    Raises InputError for a user error, and UpError, which has the deployment, for any other error.
    """
    values = stack_file if isinstance(stack_file, Mapping) else _config_of(stack_file)
    region = str(values.get("aws:region", "us-east-1"))
    deployment = Deployment(
        project=project,
        stack=stack_name,
        program=program or root / "infra",
        account=account or EmulatedAccount(region),
        preview=preview,
    )
    on_start(deployment)
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    monitor = Monitor(deployment, on_event, earlier_outputs or {})
    with _RUN_LOCK, joining_threads(ThreadPoolExecutor(1, thread_name_prefix="program")) as pool:
        try:
            context = contextvars.copy_context()
            (run,) = wait_for_any([pool.submit(context.run, _run_program, deployment, root, texts, monitor)])
            run.result()
        except KeyboardInterrupt:
            monitor.stop()
            raise
    return deployment


def _config_of(stack_file: Path) -> dict[str, Any]:
    loaded = yaml.safe_load(stack_file.read_text()) or {}
    config: dict[str, Any] = loaded.get("config") or {}
    return config


def _run_program(deployment: Deployment, root: Path, texts: dict[str, str], monitor: "Monitor") -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    thread_loops: list[asyncio.AbstractEventLoop] = []
    executor = ThreadPoolExecutor(
        _THREADS, thread_name_prefix="up", initializer=lambda: thread_loops.append(_create_thread_loop())
    )
    loop.set_default_executor(executor)
    mocks.set_mocks(
        _NoMocks(),
        deployment.project,
        deployment.stack,
        deployment.preview,
        logger=logging.getLogger(__name__),
        monitor=monitor,
    )
    settings.set_root_resource(None)  # type: ignore[arg-type] # it belongs to the previous run
    settings.SETTINGS.outputs.clear()  # outputs of an earlier failed run belong to a closed event loop
    config.set_all_config(texts)
    program = deployment.program / "__main__.py"
    finished = False
    try:
        with _fresh_modules(root):
            loop.run_until_complete(stack.run_in_stack(lambda: _execute(program)))
        finished = True
    except pulumi.RunError as error:
        if isinstance(error.__cause__, InputError):
            raise error.__cause__ from None
        raise UpError(str(error), deployment) from error
    except Exception as error:
        cause = monitor.failure or error
        raise UpError(str(cause), deployment) from cause
    finally:
        if not finished:
            deployment.account.stop()
        executor.shutdown(wait=True, cancel_futures=True)  # operations in progress still enter the deployment
        for open_loop in (*thread_loops, loop):
            _close(open_loop)


def _create_thread_loop() -> asyncio.AbstractEventLoop:
    """Create the thread's event loop here: the SDK creates missing ones, and never closes them."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def _execute(program: Path) -> None:
    runpy.run_path(str(program), run_name="__main__")


@contextmanager
def _fresh_modules(root: Path) -> Iterator[None]:
    """Import the `infra` package from this source tree, and restore the process's modules and path at exit."""
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
    """Cancel the tasks that a failed run left pending, then close the event loop."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    asyncio.set_event_loop(None)
    loop.close()


class InvokeError(grpc.RpcError):  # type: ignore[misc]
    """A failed provider function, as the SDK receives it from the engine. The SDK raises it in the program."""

    def code(self) -> grpc.StatusCode:
        """Return the gRPC status of a provider's error."""
        return grpc.StatusCode.UNKNOWN

    def details(self) -> str:
        """Return the error message."""
        return str(self)


class _NoMocks(mocks.Mocks):
    """Mocks that are never called, because Monitor handles every request itself."""

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        raise AssertionError(f"{args.typ} {args.name} bypassed the monitor")

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]] | None]:
        raise AssertionError(f"{args.token} bypassed the monitor")


class Monitor(mocks.MockMonitor):
    """Resource monitor that records whole requests, which `Mocks` never receives, and creates the resources.

    Many threads call it at once: independent resources are created in parallel.
    """

    def __init__(self, deployment: Deployment, on_event: OnEvent, earlier_outputs: Mapping[str, Any]) -> None:
        super().__init__(_NoMocks())
        self._earlier_outputs = earlier_outputs
        self._deployment = deployment
        self._on_event = on_event
        self._lock = threading.Lock()
        self.failure: AdapterError | None = None
        self._stopped = False

    def stop(self) -> None:
        """Start no further operation, and stop the local commands: the program then fails at its next operation."""
        self._stopped = True
        self._deployment.account.stop()

    def _check_not_stopped(self, operation: str) -> None:
        if self._stopped:
            raise AdapterError(f"{operation}: not started, because the run was stopped")

    def make_urn(self, parent: str, type_: str, name: str) -> str:
        """Return the URN in the engine's format: with the types of all ancestors except the stack."""
        parent_type = parent.split("::")[2] if parent else STACK_TYPE
        qualified = type_ if parent_type == STACK_TYPE else f"{parent_type}${type_}"
        return f"urn:pulumi:{self._deployment.stack}::{self._deployment.project}::{qualified}::{name}"

    def Invoke(self, request: Any) -> Any:
        """Return the result of a provider function."""
        self._check_not_stopped(request.tok)
        if request.tok == READ_OUTPUTS:
            resources = {kind: {"type": kind, "outputs": each} for kind, each in self._earlier_outputs.items()}
            result = {"outputs": resources}
            return proto.resource_pb2.ResourceInvokeResponse(**{"return": _serialize(result)})
        arguments = _to_plain(rpc.deserialize_properties(request.args))
        try:
            result = self._deployment.account.invoke(request.tok, arguments)
        except AdapterError as error:
            raise InvokeError(str(error)) from error
        return proto.resource_pb2.ResourceInvokeResponse(**{"return": _serialize(result)})

    def RegisterResource(self, request: Any) -> Any:
        """Register a resource, and create or import it unless this is a preview."""
        urn = self.make_urn(request.parent, request.type, request.name)
        if request.type == STACK_TYPE:
            return proto.resource_pb2.RegisterResourceResponse(urn=urn)
        self._check_not_stopped(f"{request.type} {request.name}")
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
            inputs=_to_plain(rpc.deserialize_properties(request.object)),
            aliases=tuple(alias.spec.name for alias in request.aliases),
            timeouts={field.name: value for field, value in request.customTimeouts.ListFields()},
        )
        with self._lock:
            if urn in self._deployment.resources:
                raise AdapterError(f"{resource.type} {resource.name}: another resource has the same type and name")
            self._deployment.resources[urn] = resource
        if resource.custom and not self._deployment.preview:
            self._create(resource)
        else:
            resource.exists = True
        state = {**resource.inputs, **resource.outputs}
        return proto.resource_pb2.RegisterResourceResponse(urn=urn, id=resource.id, object=_serialize(state))

    def RegisterResourceOutputs(self, request: Any) -> Any:
        """Record the exports of the stack."""
        if request.urn.split("::")[2] == STACK_TYPE:
            self._deployment.exports.update(_to_plain(rpc.deserialize_properties(request.outputs)))
        return empty_pb2.Empty()

    def _create(self, resource: Resource) -> None:
        if self.failure is not None:
            raise AdapterError(f"{resource.type} {resource.name}: not started, because another resource failed")
        account, folder = self._deployment.account, self._deployment.program
        started = time.monotonic()
        self._report("creating", resource)

        def on_output(line: str) -> None:
            self._report("output", resource, text=line)

        try:
            if resource.import_id:
                _check_import_keeps_name(resource)
                resource.id = resource.import_id
                resource.id, resource.outputs = account.import_resource(resource.request, folder, on_output)
            else:
                resource.id, resource.outputs = account.create(resource.request, folder, on_output)
        except Exception as error:
            failure = (
                error
                if isinstance(error, AdapterError)
                else AdapterError(f"{resource.type} {resource.name}: {error!r}")
            )
            self._record_failure(failure)
            self._report("failed", resource, time.monotonic() - started, str(failure))
            if failure is error:
                raise
            raise failure from error
        resource.seconds = time.monotonic() - started
        resource.exists = True
        self._report("imported" if resource.imported else "created", resource, resource.seconds)

    def _record_failure(self, error: AdapterError) -> None:
        with self._lock:
            self.failure = self.failure or error

    def _report(self, kind: Any, resource: Resource, seconds: float = 0.0, text: str = "") -> None:
        self._on_event(
            Event(kind=kind, urn=resource.urn, type=resource.type, name=resource.name, seconds=seconds, text=text)
        )


def _check_import_keeps_name(resource: Resource) -> None:
    """Raise AdapterError, as the engine does, for an import that a generated name would replace."""
    name = _AUTONAMED.get(resource.type)
    if name and name not in resource.inputs and name not in resource.ignore_changes:
        raise AdapterError(
            f"{resource.type} {resource.name}: an imported resource must not be replaced, but {name} would get a "
            f"generated name: set {name}, or add it to ignore_changes"
        )


def _serialize(values: Mapping[str, Any]) -> Any:
    return sync_await._sync_await(rpc.serialize_properties(dict(values), {}))


def _to_plain(value: Any) -> Any:
    """Unwrap secrets, convert whole numbers to int (the protocol has only floats), and drop unknown values."""
    if rpc.is_rpc_secret(value):
        return _to_plain(value["value"])
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items() if not _is_unset(item)}
    if isinstance(value, list):
        return [_to_plain(item) for item in value if not _is_unset(item)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _is_unset(value: Any) -> bool:
    return value is None or isinstance(value, pulumi.output.Unknown)
