"""Destroy a stack: stop its run, run `pulumi destroy`, and list the resources that remain."""

import time

from pydantic import Field

from trainyard.aws import tags
from trainyard.aws.tagged_resources import TaggedResource, tagged_resources
from trainyard.base import StrictModel
from trainyard.errors import InputError
from trainyard.operations.cluster import Cluster
from trainyard.operations.image_builder import terminate_builders
from trainyard.operations.progress import Display
from trainyard.operations.pulumi_cli import PulumiProject, stack_missing
from trainyard.operations.stack_reservations import delete_held_placement_groups
from trainyard.operations.stop import stop_run
from trainyard.quantity import quantity

POLL_SECONDS = 5.0
# AWS lists resources for a while after their deletion: instances that shut down, and what only the tagging API lists.
AUDIT_TIMEOUT_SECONDS = 120.0
# Roles of resources that `pulumi destroy` retains, and of the images of `trainyard bake` with their snapshots.
RETAINED_ROLES = (tags.DATA_BUCKET, tags.STACK_KEY, tags.IMAGE)


class ExistingResource(StrictModel):
    """A resource of the account that has the stack's tag."""

    kind: str = Field(description="Service and kind, such as ec2:instance.")
    id: str = Field(description="Id or name.")
    state: str = Field(description="State; empty for kinds without one.")

    def __str__(self) -> str:
        return f"{self.kind} {self.id}{f' ({self.state})' if self.state else ''}"


class DestroyResult(StrictModel):
    """`trainyard destroy --json`."""

    stack: str = Field(description="Pulumi stack.")
    terminated: tuple[str, ...] = Field(description="Nodes that ran before.")
    pulumi_exit_status: int = Field(description="Exit status of `pulumi destroy`.")
    retained: tuple[ExistingResource, ...] = Field(description="Data bucket, KMS key and images, which are kept.")
    remaining: tuple[ExistingResource, ...] = Field(description="Other resources with the stack's tag.")

    @property
    def complete(self) -> bool:
        """Whether Pulumi succeeded and nothing remains except what is retained."""
        return self.pulumi_exit_status == 0 and not self.remaining


def destroy(cluster: Cluster, display: Display, pulumi: PulumiProject) -> DestroyResult:
    """Stop the run, delete the stack's resources, and audit the account. It can be repeated at any point.

    Pulumi's output goes to stderr. Raises InputError without the Pulumi CLI, its login or project, before anything is
    stopped, and for a stack that the Pulumi backend does not have, after its run and its held capacity have ended;
    TimeoutError when nodes still exist.
    """
    has_stack = pulumi.has_stack(cluster.stack)
    terminated = stop_run(cluster, display).nodes
    delete_held_placement_groups(cluster, display, keep_used=False)
    if builders := terminate_builders(cluster):
        display.line("builder", f"terminated: {', '.join(builders)}")
    if not has_stack:
        for each in audit(cluster, display, 0.0)[1]:
            display.line("remaining", str(each))
        raise InputError([stack_missing(cluster.stack, cluster.project)])
    arguments = ("destroy", "--stack", cluster.stack, "--yes")
    display.line("pulumi", " ".join(arguments))
    exit_status = pulumi.run(*arguments)
    retained, remaining = audit(cluster, display, 0.0 if exit_status else AUDIT_TIMEOUT_SECONDS)
    return DestroyResult(
        stack=cluster.stack,
        terminated=tuple(terminated),
        pulumi_exit_status=exit_status,
        retained=retained,
        remaining=remaining,
    )


def audit(
    cluster: Cluster, display: Display, timeout_seconds: float
) -> tuple[tuple[ExistingResource, ...], tuple[ExistingResource, ...]]:
    """Return the retained and the remaining resources of the stack; repeat until nothing remains or the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        resources = tagged_resources(cluster.region, tags.STACK, cluster.stack_tag)
        retained = tuple(_existing(resource) for resource in resources if _is_retained(resource))
        remaining = tuple(_existing(resource) for resource in resources if not _is_retained(resource))
        if not remaining or time.monotonic() >= deadline:
            return retained, remaining
        display.line("audit", f"not deleted: {quantity(len(remaining), 'resource')}")
        time.sleep(POLL_SECONDS)


def _is_retained(resource: TaggedResource) -> bool:
    return resource.tags.get(tags.ROLE) in RETAINED_ROLES


def _existing(resource: TaggedResource) -> ExistingResource:
    return ExistingResource(kind=resource.kind, id=resource.id, state=resource.state)


def format_result(result: DestroyResult) -> list[str]:
    """Format the result for people."""
    lines = [f"{name}: {each}" for name in ("retained", "remaining") for each in getattr(result, name)]
    if result.pulumi_exit_status:
        lines.append(f"pulumi destroy failed with exit status {result.pulumi_exit_status}")
    if result.complete:
        return [*lines, f"stack {result.stack} is destroyed"]
    return [*lines, f"stack {result.stack} is not destroyed: run trainyard destroy -s {result.stack} again"]
