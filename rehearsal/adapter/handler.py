"""What a handler of a resource type is, and the check that it knows every input it is given."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rehearsal.adapter.changes import Changed, changes, stands_under
from rehearsal.adapter.errors import AdapterError, UnknownKey
from rehearsal.adapter.session import Aws

# Input key -> None for a value or a free map (tags), or the keys of the object, or list of objects, that stands there.
Keys = Mapping[str, "Keys | None"]
Made = tuple[str, dict[str, Any]]
_SUFFIX_DIGITS = 7


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
        return autoname(self.name)

    def only(self, **api_names: str) -> dict[str, Any]:
        """The inputs that are there, under the API's names."""
        return {api: self.inputs[key] for key, api in api_names.items() if key in self.inputs}

    def changed(self, *keys: str) -> bool:
        """Whether an update changes one of these inputs."""
        return any(self.olds.get(key) != self.inputs.get(key) for key in keys)

    @property
    def tags(self) -> list[dict[str, str]]:
        return tag_list(self.inputs.get("tags"))

    def tag_specification(self, kind: str) -> dict[str, Any]:
        """The argument by which EC2 tags a thing in the very call that makes it."""
        return {"TagSpecifications": [{"ResourceType": kind, "Tags": self.tags}]} if self.tags else {}


@dataclass(frozen=True, kw_only=True)
class Found:
    """A thing as it stands in the account: what its inputs would be, and its other outputs."""

    inputs: dict[str, Any]
    outputs: dict[str, Any]


class Handler(ABC):
    """Makes, changes and deletes resources of one type.

    `replaces`: inputs, with dots for those inside others, whose change the provider answers with another resource in
    place of this one. They are those of the provider's own schema: `ForceNew` (or a RequiresReplace plan modifier) in
    github.com/hashicorp/terraform-provider-aws, which pulumi-aws wraps; the user reads there "Forces new resource".
    `named`: the input that takes a unique name where the program gives none.
    """

    type: str
    keys: Keys
    replaces: frozenset[str] = frozenset()
    named: str = ""

    @abstractmethod
    def create(self, call: Call) -> Made:
        """Make it, wait until it can be used, and return its id and the outputs that are not inputs."""

    @abstractmethod
    def delete(self, call: Call) -> None:
        """Delete `call.id` and wait until it is gone."""

    def update(self, call: Call) -> dict[str, Any]:
        """Bring `call.id` from `call.olds` to `call.inputs`, none of `replaces` among what differs.

        Returns the outputs that this changed.
        """
        raise NotImplementedError(f"{call.type} {call.name}: the adapter can't change this type yet")

    def read(self, call: Call) -> Found | None:
        """What `call.id` is in the account; None where there is no such thing."""
        raise NotImplementedError(f"{call.type} {call.name}: the adapter can't adopt this type yet")

    def adopt(self, call: Call) -> Made:
        """Take over `call.id`, which exists, and bring what differs from the inputs in line with them."""
        found = self.read(call)
        if found is None:
            raise AdapterError(f"{call.type} {call.name}: there is no {call.id} to adopt")
        kept = {self.named: found.inputs[self.named]} if self.named else {}
        inputs = {**kept, **call.inputs}
        if not changes(found.inputs, inputs):
            return call.id, found.outputs
        changed = self.update(replace(call, inputs=inputs, olds=found.inputs, outputs=found.outputs))
        return call.id, {**found.outputs, **changed}

    def anew(self, changed: Collection[str]) -> frozenset[str]:
        """The outputs that an update of these inputs makes anew: a preview can't know them."""
        return frozenset()

    def forces(self, path: Changed, olds: Mapping[str, Any], news: Mapping[str, Any]) -> bool:
        """Whether this change between the inputs needs another resource in place of this one."""
        return stands_under(path, self.replaces)

    def name_of(self, call: Call) -> str:
        """The physical name: that among the inputs, else one made now."""
        return str(call.inputs.get(self.named) or call.autoname())


def autoname(name: str) -> str:
    """A unique physical name for a resource of this name."""
    return f"{name}-{secrets.token_hex(4)[:_SUFFIX_DIGITS]}"


def tag_list(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted((tags or {}).items())]


def api_case(name: str) -> str:
    return name[0].upper() + name[1:]


def renamed(given: Mapping[str, Any], **special: str) -> dict[str, Any]:
    """An object under the API's names, and those in it: the provider's with a capital, save the special ones."""
    return {
        special.get(key, api_case(key)): renamed(value, **special) if isinstance(value, Mapping) else value
        for key, value in given.items()
    }


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
