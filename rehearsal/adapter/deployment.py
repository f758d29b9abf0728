"""Deployment: the resources that a run of the program registered and created. Tests and destroy use it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rehearsal.adapter.account import Account, ResourceRequest

STACK_TYPE = "pulumi:pulumi:Stack"


EventKind = Literal[
    "creating",
    "created",
    "imported",
    "updating",
    "updated",
    "deleting",
    "deleted",
    "retained",
    "failed",
    "output",
]


@dataclass(kw_only=True)
class Resource:
    """A resource that the program registered.

    `exists`: whether it currently exists in the account (for a component: whether it was registered).
    `deleted`: whether a destroy has deleted it. `seconds`: duration of its creation. `aliases`: earlier names.
    `timeouts`: operation -> duration, such as `40m`.
    """

    urn: str
    type: str
    name: str
    parent: str
    dependencies: frozenset[str]
    custom: bool
    retain_on_delete: bool
    protect: bool
    delete_before_replace: bool
    ignore_changes: tuple[str, ...]
    import_id: str
    inputs: Mapping[str, Any]
    aliases: tuple[str, ...] = ()
    timeouts: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    exists: bool = False
    deleted: bool = False

    @property
    def imported(self) -> bool:
        """Whether the resource existed before this run, and was imported."""
        return bool(self.import_id)

    @property
    def request(self) -> ResourceRequest:
        """The resource as a request to an account."""
        return ResourceRequest(
            urn=self.urn, type=self.type, name=self.name, inputs=self.inputs, id=self.id, outputs=self.outputs
        )


@dataclass(kw_only=True)
class Deployment:
    """The resources and exports of one `up`, complete or not.

    `project`: name of the Pulumi project. `program`: the folder of the Pulumi program.
    """

    project: str
    stack: str
    program: Path
    account: Account
    preview: bool
    resources: dict[str, Resource] = field(default_factory=dict)
    exports: dict[str, Any] = field(default_factory=dict)

    def resources_of_type(self, type_: str) -> list[Resource]:
        """Return the resources with this type token, in the order of registration."""
        return [resource for resource in self.resources.values() if resource.type == type_]

    def resource(self, type_: str, name: str) -> Resource:
        """Return the only resource of this type and name."""
        matches = [resource for resource in self.resources_of_type(type_) if resource.name == name]
        assert len(matches) == 1, f"{len(matches)} resources {type_} {name}"
        return matches[0]

    @property
    def existing_resources(self) -> list[Resource]:
        """The resources that exist in the account, as the engine's state lists them, without components."""
        return [resource for resource in self.resources.values() if resource.exists and resource.custom]


@dataclass(frozen=True, kw_only=True)
class Event:
    """A change of a resource. `text`: a line of its command's stderr (kind `output`), or the reason of a failure."""

    kind: EventKind
    urn: str
    type: str
    name: str
    seconds: float = 0.0
    text: str = ""
