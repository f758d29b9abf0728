"""Destroy: what a deployment made goes in reverse order of its dependencies, independent things side by side."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rehearsal.adapter.graph import STACK_TYPE, Deployment, Event, Resource
from rehearsal.adapter.pool import settled, some_done

_THREADS = 16


class DestroyFailed(Exception):
    """Something would not go. `left` still stands: what failed, and what it needs."""

    def __init__(self, failures: dict[str, str], left: list[Resource]) -> None:
        self.failures = failures
        self.left = left
        lines = [*failures.values(), "left standing: " + ", ".join(f"{item.type} {item.name}" for item in left)]
        super().__init__("\n".join(lines))


@dataclass(frozen=True)
class Destroyed:
    """What a destroy came to, those before it that were cut included."""

    deleted: tuple[Resource, ...]
    retained: tuple[Resource, ...]


def destroy(deployment: Deployment, *, on_event: Callable[[Event], None] = lambda event: None) -> Destroyed:
    """Delete all that the deployment made and does not retain.

    May be called again after a failure, or where it was cut: it goes on with what is left. Raises DestroyFailed when
    anything is. All that it knows stands in the graph, so it may be cut between any two lines.
    """
    waiting = {urn: resource for urn, resource in deployment.resources.items() if resource.made}
    needs = {urn: _needs(deployment, resource) for urn, resource in waiting.items()}
    failures: dict[str, str] = {}
    running: dict[Future[None], Resource] = {}

    def tell(kind: Any, resource: Resource, seconds: float = 0.0, text: str = "") -> None:
        on_event(Event(kind=kind, urn=resource.urn, type=resource.type, name=resource.name, seconds=seconds, text=text))

    def delete(resource: Resource) -> None:
        began = time.monotonic()
        tell("deleting", resource)
        deployment.account.delete(resource.subject, deployment.root, lambda line: tell("line", resource, text=line))
        resource.made, resource.deleted = False, True
        tell("deleted", resource, time.monotonic() - began)

    with settled(ThreadPoolExecutor(_THREADS, thread_name_prefix="destroy")) as pool:
        while waiting or running:
            # Free to go: nothing that stands, is going, or would not go needs it.
            needed = set().union(*(needs[urn] for urn in (*waiting, *failures, *(r.urn for r in running.values()))))
            free = [resource for urn, resource in waiting.items() if urn not in needed]
            for resource in free:
                del waiting[resource.urn]
                if resource.retain_on_delete and resource.custom:
                    tell("retained", resource)
                elif resource.custom:
                    running[pool.submit(delete, resource)] = resource
                else:
                    resource.made = False
            if not running:
                if free:
                    continue
                break
            for future in some_done(running.keys()):
                resource = running.pop(future)
                error = future.exception()
                if error is not None:
                    failures[resource.urn] = str(error)
                    tell("failed", resource, text=str(error))
    if failures:
        left = [resource for urn, resource in deployment.resources.items() if urn in waiting or urn in failures]
        raise DestroyFailed(failures, [resource for resource in left if resource.custom])
    assert not waiting, f"a circle of dependencies: {sorted(waiting)}"
    own = [resource for resource in deployment.resources.values() if resource.custom]
    return Destroyed(
        deleted=tuple(resource for resource in own if resource.deleted),
        retained=tuple(resource for resource in own if resource.made),
    )


def _needs(deployment: Deployment, resource: Resource) -> set[str]:
    """What must stand as long as this does: its dependencies and its parent."""
    parent = {resource.parent} if resource.parent and STACK_TYPE not in resource.parent else set()
    return {*resource.dependencies, *parent} & deployment.resources.keys()
