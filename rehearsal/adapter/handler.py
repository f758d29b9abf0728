"""What a handler of a resource type is, and the check that it knows every input it is given."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal.adapter.errors import UnknownKey
from rehearsal.adapter.session import Aws

# Input key -> None for a value or a free map (tags), or the keys of the object, or list of objects, that stands there.
Keys = Mapping[str, "Keys | None"]
Made = tuple[str, dict[str, Any]]


def known(*names: str, **nested: Keys) -> Keys:
    return {**dict.fromkeys(names), **nested}


@dataclass(frozen=True, kw_only=True)
class Call:
    """One resource to serve. `say` receives lines of output that a resource shows while it is being made."""

    aws: Aws
    urn: str
    type: str
    name: str
    inputs: Mapping[str, Any]
    root: Path
    id: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    olds: Mapping[str, Any] = field(default_factory=dict)  # of an update: the inputs until now
    say: Callable[[str], None] = lambda line: None

    def autoname(self) -> str:
        """A unique physical name, as the engine makes one."""
        return f"{self.name}-{secrets.token_hex(4)[:7]}"

    def only(self, **api_names: str) -> dict[str, Any]:
        """The inputs that are there, under the API's names."""
        return {api: self.inputs[key] for key, api in api_names.items() if key in self.inputs}

    @property
    def tags(self) -> list[dict[str, str]]:
        return tag_list(self.inputs.get("tags"))

    def tag_specification(self, kind: str) -> dict[str, Any]:
        """The argument by which EC2 tags a thing in the very call that makes it."""
        return {"TagSpecifications": [{"ResourceType": kind, "Tags": self.tags}]} if self.tags else {}


class Handler(ABC):
    """Makes, changes and deletes resources of one type.

    `replaces`: inputs whose change the provider answers with another resource in place of this one (its schema's
    `replaceOnChanges`, in the provider's own documentation "forces new resource").
    """

    type: str
    keys: Keys
    replaces: frozenset[str] = frozenset()

    @abstractmethod
    def create(self, call: Call) -> Made:
        """Make it, wait until it can be used, and return its id and the outputs that are not inputs."""

    @abstractmethod
    def delete(self, call: Call) -> None:
        """Delete `call.id` and wait until it is gone."""

    def update(self, call: Call) -> dict[str, Any]:
        """Bring `call.id` from `call.olds` to `call.inputs`, none of `replaces` among what differs; its outputs."""
        raise NotImplementedError(f"{call.type} {call.name}: the adapter can't change this type yet")

    def adopt(self, call: Call) -> Made:
        """Take over `call.id`, which exists, and bring what differs from the inputs in line with them."""
        raise NotImplementedError(f"{call.type} {call.name}: the adapter can't adopt this type yet")


def tag_list(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted((tags or {}).items())]


def api_case(name: str) -> str:
    return name[0].upper() + name[1:]


def check_keys(spec: Keys, given: Mapping[str, Any], owner: str, path: str = "") -> None:
    """Raise UnknownKey for the first input that stands in no handler's list."""
    for key, value in given.items():
        where = f"{path}{key}"
        if key not in spec:
            raise UnknownKey(f"{owner}: the adapter does not know the input {where}")
        below = spec[key]
        if below is None:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                check_keys(below, item, owner, f"{where}.")
