"""What this node is, as the bootstrap found it, and where its files lie."""

import os
from functools import cache
from pathlib import Path

from pydantic import Field

from trainyard.base import Contract
from trainyard.models.events import NodeRole
from trainyard.models.manifest import Manifest, WorkerGroup

ROOT = Path(os.environ.get("TRAINYARD_ROOT", "/"))
BASE = ROOT / "opt/trainyard"
NEWER_CODE = 75  # exit code of a service that ends to be started again from a newer bundle (EX_TEMPFAIL)


class Node(Contract):
    """`node.json`, written by the bootstrap at each boot."""

    role: NodeRole = Field(description="What the node is.")
    group: str | None = Field(
        None, description="Name in the manifest of the worker group that it is in; a builder's, that its image is for."
    )
    instance: str = Field(description="EC2 instance id.")
    address: str = Field(description="Private IPv4 address.")
    boot: str = Field(description="Number of this boot, from 0001.")
    region: str = Field(description="AWS region.")
    manifest_uri: str = Field(description="S3 URI of the manifest.")
    bundle: str = Field(description="Folder of the unpacked bundle.")

    def stamp(self, time: float) -> dict[str, object]:
        """The fields that every event of this node bears."""
        return {"time": time, "instance": self.instance, "role": self.role, "boot": self.boot}


@cache
def this_node() -> Node:
    return Node.model_validate_json((BASE / "node.json").read_text())


def manifest_at_boot() -> Manifest:
    """The manifest that the bootstrap fetched."""
    return Manifest.model_validate_json((BASE / "manifest.json").read_text())


def outdated(node: Node) -> bool:
    """Whether a newer bundle has taken the place of the one that this process was started from."""
    current = BASE / "current"
    return current.exists() and current.resolve() != Path(node.bundle).resolve()


def own_group(node: Node, manifest: Manifest) -> WorkerGroup:
    """The worker group that this node is in, as its user-data names it.

    Raises LookupError where the manifest does not know that group.
    """
    for group in manifest.groups:
        if group.name == node.group:
            return group
    raise LookupError(f"this node is in the group {node.group}, which the manifest does not name")
