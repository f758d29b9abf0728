"""What a run of the program registered and made: the graph that tests read and that destroy walks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rehearsal.adapter.account import Account, Subject

STACK_TYPE = "pulumi:pulumi:Stack"


EventKind = Literal[
    "creating",
    "created",
    "adopted",
    "updating",
    "updated",
    "deleting",
    "deleted",
    "retained",
    "failed",
    "line",
]


@dataclass(kw_only=True)
class Resource:
    """One registration. `made`: whether it stands in the account now (components: whether they were registered).

    `deleted`: a destroy has deleted it.
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
    id: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    made: bool = False
    deleted: bool = False

    @property
    def adopted(self) -> bool:
        """Whether it was there before this run."""
        return bool(self.import_id)

    @property
    def subject(self) -> Subject:
        return Subject(
            urn=self.urn, type=self.type, name=self.name, inputs=self.inputs, id=self.id, outputs=self.outputs
        )


@dataclass(kw_only=True)
class Deployment:
    """One `up`, finished or not."""

    stack: str
    root: Path
    account: Account
    preview: bool
    resources: dict[str, Resource] = field(default_factory=dict)
    exports: dict[str, Any] = field(default_factory=dict)

    def of_type(self, type_: str) -> list[Resource]:
        return [resource for resource in self.resources.values() if resource.type == type_]

    def one(self, type_: str, name: str) -> Resource:
        """The only resource of this type and name."""
        found = [resource for resource in self.of_type(type_) if resource.name == name]
        assert len(found) == 1, f"{len(found)} resources {type_} {name}"
        return found[0]

    @property
    def standing(self) -> list[Resource]:
        """What the engine would have in its state: all that is made and not deleted, components left out."""
        return [resource for resource in self.resources.values() if resource.made and resource.custom]


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something happened to a resource. `text`: a line of its command's stderr, or why it failed."""

    kind: EventKind
    urn: str
    type: str
    name: str
    seconds: float = 0.0
    text: str = ""
