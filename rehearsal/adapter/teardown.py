"""Destroys a deployment: deletes its resources in reverse order of dependencies, independent resources in parallel."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rehearsal.adapter.deployment import STACK_TYPE, Deployment, Event, Resource
from rehearsal.adapter.threads import joining_threads, wait_for_any

_THREADS = 16


class DestroyError(Exception):
    """A deletion failed. `remaining`: the resources that still exist: those that failed, and their dependencies."""

    def __init__(self, failures: dict[str, str], remaining: list[Resource]) -> None:
        self.failures = failures
        self.remaining = remaining
        names = ", ".join(f"{resource.type} {resource.name}" for resource in remaining)
        super().__init__("\n".join([*failures.values(), f"not deleted: {names}"]))


@dataclass(frozen=True)
class DestroyResult:
    """Resources that were deleted and retained, including by earlier destroys that were interrupted."""

    deleted: tuple[Resource, ...]
    retained: tuple[Resource, ...]


def destroy(deployment: Deployment, *, on_event: Callable[[Event], None] = lambda event: None) -> DestroyResult:
    """Delete all resources that the deployment created and does not retain.

    It can be called again after a failure or an interrupt, at any point: it continues with the resources that remain,
    because all its state is in the deployment. Raises DestroyError when a resource remains.
    """
    waiting = {urn: resource for urn, resource in deployment.resources.items() if resource.exists}
    dependencies = {urn: _dependencies(deployment, resource) for urn, resource in waiting.items()}
    failures: dict[str, str] = {}
    running: dict[Future[None], Resource] = {}

    def report(kind: Any, resource: Resource, seconds: float = 0.0, text: str = "") -> None:
        on_event(Event(kind=kind, urn=resource.urn, type=resource.type, name=resource.name, seconds=seconds, text=text))

    def delete(resource: Resource) -> None:
        started = time.monotonic()
        report("deleting", resource)
        account, folder = deployment.account, deployment.program
        account.delete(resource.request, folder, lambda line: report("output", resource, text=line))
        resource.exists, resource.deleted = False, True
        report("deleted", resource, time.monotonic() - started)

    with joining_threads(ThreadPoolExecutor(_THREADS, thread_name_prefix="destroy")) as pool:
        while waiting or running:
            # Ready: no resource that waits, is being deleted or failed depends on it.
            blocking = (*waiting, *failures, *(resource.urn for resource in running.values()))
            needed = set().union(*(dependencies[urn] for urn in blocking))
            ready = [resource for urn, resource in waiting.items() if urn not in needed]
            for resource in ready:
                del waiting[resource.urn]
                if resource.retain_on_delete and resource.custom:
                    report("retained", resource)
                elif resource.custom:
                    running[pool.submit(delete, resource)] = resource
                else:
                    resource.exists = False
            if not running:
                if ready:
                    continue
                break
            for future in wait_for_any(running.keys()):
                resource = running.pop(future)
                error = future.exception()
                if error is not None:
                    failures[resource.urn] = str(error)
                    report("failed", resource, text=str(error))
    if failures:
        remaining = [resource for urn, resource in deployment.resources.items() if urn in waiting or urn in failures]
        raise DestroyError(failures, [resource for resource in remaining if resource.custom])
    assert not waiting, f"circular dependencies: {sorted(waiting)}"
    resources = [resource for resource in deployment.resources.values() if resource.custom]
    return DestroyResult(
        deleted=tuple(resource for resource in resources if resource.deleted),
        retained=tuple(resource for resource in resources if resource.exists),
    )


def _dependencies(deployment: Deployment, resource: Resource) -> set[str]:
    """Return the URNs that must not be deleted before this resource: its dependencies and its parent."""
    parent = {resource.parent} if resource.parent and STACK_TYPE not in resource.parent else set()
    return {*resource.dependencies, *parent} & deployment.resources.keys()
