"""Identity of this node, as the bootstrap wrote it, and the paths of its files."""

import os
from functools import cache
from pathlib import Path

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.models.events import NodeRole
from trainyard.models.manifest import Manifest, WorkerGroup
from trainyard.node.sequence import next_sequence

ROOT = Path(os.environ.get("TRAINYARD_ROOT", "/")).resolve()
BASE = ROOT / "opt/trainyard"
# Folder in host memory: a tmpfs, whose content ends with the boot (tmpfs(5)).
MEMORY = ROOT / "dev/shm/trainyard"
# Program below BASE that runs a command in the job's container, and the name of that container; at most one per node.
# The playbook installs the program, and removes the container when the agent's service stops.
CONTAINER_WRAPPER = "bin/run-in-container"
CONTAINER_NAME = "trainyard-job"
_CONFIGURED = BASE / "configured"
EXIT_NEWER_BUNDLE = 75  # exit code of a service that systemd must restart from a newer bundle (EX_TEMPFAIL)


class Node(StrictModel):
    """Identity of a node: `node.json`, written by the bootstrap at each boot."""

    role: NodeRole = Field(description="Role of the node.")
    group: str | None = Field(
        None,
        description="Name of the node's worker group in the manifest; for a builder, the group of its image.",
    )
    instance: str = Field(description="EC2 instance id.")
    address: str = Field(description="Private IPv4 address.")
    boot: str = Field(description="Number of this boot, from 0001.")
    region: str = Field(description="AWS region.")
    account: str | None = Field(
        None, description="Account that owns the stack's staging bucket; none: booted by an earlier version."
    )
    manifest_uri: str = Field(description="S3 URI of the manifest.")
    bundle: str = Field(description="Folder of the unpacked bundle.")

    def event_fields(self, time: float) -> dict[str, object]:
        """Fields of every event of this node. `time`: Unix time in seconds."""
        fields = {"instance": self.instance, "role": self.role, "boot": self.boot}
        return {"time": time, **fields, "sequence": next_sequence()}


@cache
def read_node() -> Node:
    """Identity of this node, read once per process."""
    return Node.model_validate_json((BASE / "node.json").read_text())


def read_manifest() -> Manifest:
    """The manifest on this node: the bootstrap downloads it, a refresh replaces it."""
    return Manifest.model_validate_json((BASE / "manifest.json").read_text())


def write_configured(manifest: Manifest, container: str | None) -> None:
    """Store that the playbook has applied this manifest to the node, and pulled this container image, if any."""
    _CONFIGURED.write_text(_format_configured(manifest.node_digest(), container))


def is_configured(node_digest: str, container: str | None) -> bool:
    """Whether the playbook has applied a manifest with this digest (Manifest.node_digest), and this container image."""
    return _CONFIGURED.exists() and _CONFIGURED.read_text() == _format_configured(node_digest, container)


def _format_configured(node_digest: str, container: str | None) -> str:
    return f"{node_digest} {container or ''}".rstrip()


def is_outdated(node: Node) -> bool:
    """Whether the current bundle is newer than the bundle from which this process was started."""
    current = BASE / "current"
    return current.exists() and current.resolve() != Path(node.bundle).resolve()


def find_group(node: Node, manifest: Manifest) -> WorkerGroup:
    """Worker group of this node, as its user data names it.

    Raises LookupError if the manifest does not contain that group.
    """
    for group in manifest.groups:
        if group.name == node.group:
            return group
    raise LookupError(f"the manifest does not contain {node.group}, the worker group of this node")
