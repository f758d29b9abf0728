"""Base class of the resource handlers, and the check that a handler supports every input of its resource."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rehearsal.adapter.aws_clients import AwsClients
from rehearsal.adapter.errors import AdapterError, UnsupportedInputError, ignore_missing
from rehearsal.adapter.input_diff import PropertyPath, diff_inputs, is_at_or_below

# Input key -> None for a scalar or a free map (tags), or the keys of the object (or list of objects) that it holds.
InputKeys = Mapping[str, "InputKeys | None"]
CreateResult = tuple[str, dict[str, Any]]  # the resource's id, and its outputs that are not inputs
_SUFFIX_DIGITS = 7


def input_keys(*names: str, **nested: InputKeys) -> InputKeys:
    """Return the supported inputs: scalars and free maps by `names`, objects and lists of objects as `nested`."""
    return {**dict.fromkeys(names), **nested}


@dataclass(frozen=True, kw_only=True)
class HandlerCall:
    """One call of a handler, for one resource.

    `folder`: the program's, in which commands run. `old_inputs`: the previous inputs, for an update. `on_output`:
    receives each line of output of the resource's command while the command runs.
    """

    aws: AwsClients
    urn: str
    type: str
    name: str
    inputs: Mapping[str, Any]
    folder: Path
    id: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    old_inputs: Mapping[str, Any] = field(default_factory=dict)
    on_output: Callable[[str], None] = lambda line: None

    def autoname(self) -> str:
        """Return a unique physical name for the resource, in the engine's format."""
        return autoname(self.name)

    def api_arguments(self, **api_names: str) -> dict[str, Any]:
        """Return the inputs that are set, under the API's names. `api_names`: input key -> API name."""
        return {api: self.inputs[key] for key, api in api_names.items() if key in self.inputs}

    def has_changed(self, *keys: str) -> bool:
        """Return whether an update changes one of these inputs."""
        return any(self.old_inputs.get(key) != self.inputs.get(key) for key in keys)

    @property
    def tags(self) -> list[dict[str, str]]:
        """The resource's tags as most AWS APIs expect them."""
        return tag_list(self.inputs.get("tags"))

    def tag_specification(self, kind: str) -> dict[str, Any]:
        """Return the argument with which EC2 tags a resource of this kind in the same call that creates it."""
        return {"TagSpecifications": [{"ResourceType": kind, "Tags": self.tags}]} if self.tags else {}


@dataclass(frozen=True, kw_only=True)
class ReadResult:
    """Current state of an existing resource: inputs under the program's names, and outputs that can change.

    AWS reports more than the supported inputs; `refresh_inputs` ignores the others.
    """

    inputs: dict[str, Any]
    outputs: dict[str, Any] = field(default_factory=dict)


class Handler(ABC):
    """Creates, updates and deletes resources of one type.

    `type`: the Pulumi type token. `keys`: the supported inputs.
    `replace_on_changes`: inputs whose change replaces the resource; nested inputs are written with dots. They are those
    of the provider's own schema: `ForceNew` (or a RequiresReplace plan modifier) in
    github.com/hashicorp/terraform-provider-aws, which pulumi-aws wraps. Its documentation marks
    them with "Forces new resource".
    `name_input`: the input that receives a unique name where the program sets none.
    `unreported`: inputs that AWS does not report, so that `read` does not return them.
    """

    type: str
    keys: InputKeys
    replace_on_changes: frozenset[str] = frozenset()
    name_input: str = ""
    unreported: frozenset[str] = frozenset()

    @abstractmethod
    def create(self, call: HandlerCall) -> CreateResult:
        """Create the resource, wait until it is usable, and return its id and the outputs that are not inputs."""

    @abstractmethod
    def delete(self, call: HandlerCall) -> None:
        """Delete the resource `call.id` and wait until it no longer exists."""

    def update(self, call: HandlerCall) -> dict[str, Any]:
        """Update the resource `call.id` from `call.old_inputs` to `call.inputs`, and return the changed outputs.

        The caller replaces the resource instead when an input of `replace_on_changes` differs.
        """
        raise NotImplementedError(f"{call.type} {call.name}: the adapter does not support updates of this type")

    @abstractmethod
    def read(self, call: HandlerCall) -> ReadResult | None:
        """Return the current state of the resource `call.id`, or None when it does not exist.

        For a refresh, `call.inputs` are those of the last deployment; an import has none.
        """

    def read_existing(self, call: HandlerCall) -> ReadResult | None:
        """Return the result of `read`; None also where the API raises an error for a missing resource."""
        with ignore_missing():
            return self.read(call)
        return None

    def required_input(self, call: HandlerCall, key: str) -> Any:
        """Return an input that `read` needs. Raises AdapterError for an import, which has none."""
        if key not in call.inputs:
            raise AdapterError(f"{call.type} {call.name}: the adapter does not support imports of this type")
        return call.inputs[key]

    def import_resource(self, call: HandlerCall) -> CreateResult:
        """Import the existing resource `call.id` and update the inputs that differ.

        Raises AdapterError when the resource does not exist.
        """
        current = self.read_existing(call)
        if current is None:
            raise AdapterError(f"{call.type} {call.name}: cannot import {call.id}: it does not exist")
        physical_name = {self.name_input: current.inputs[self.name_input]} if self.name_input else {}
        inputs = {**physical_name, **call.inputs}
        if not diff_inputs(current.inputs, inputs):
            return call.id, current.outputs
        changed = self.update(replace(call, inputs=inputs, old_inputs=current.inputs, outputs=current.outputs))
        return call.id, {**current.outputs, **changed}

    def outputs_changed_by(self, changed: Collection[str]) -> frozenset[str]:
        """Return the outputs that an update of these inputs changes: a preview reports them as unknown."""
        return frozenset()

    def requires_replacement(
        self, path: PropertyPath, old_inputs: Mapping[str, Any], new_inputs: Mapping[str, Any]
    ) -> bool:
        """Return whether the change at `path` replaces the resource."""
        return is_at_or_below(path, self.replace_on_changes)

    def physical_name(self, call: HandlerCall) -> str:
        """Return the resource's name in AWS: the program's own, or a new unique one."""
        return str(call.inputs.get(self.name_input) or call.autoname())


def autoname(name: str) -> str:
    """Return a unique physical name for the resource `name`."""
    return f"{name}-{secrets.token_hex(4)[:_SUFFIX_DIGITS]}"


def tag_list(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    """Return tags as the list of Key and Value that most AWS APIs expect, sorted by key."""
    return [{"Key": key, "Value": value} for key, value in sorted((tags or {}).items())]


def api_name(name: str) -> str:
    """Return the API's name of an input: the same name with a capital."""
    return name[0].upper() + name[1:]


def to_api_names(values: Mapping[str, Any], **special: str) -> dict[str, Any]:
    """Return an object under the API's names, nested objects included. `special`: names with other spellings."""
    return {
        special.get(key, api_name(key)): to_api_names(value, **special) if isinstance(value, Mapping) else value
        for key, value in values.items()
    }


def check_input_keys(supported: InputKeys, inputs: Mapping[str, Any], owner: str, path: str = "") -> None:
    """Raise UnsupportedInputError for the first input that is not in `supported`.

    `owner`: type and name of the resource, for the message.
    """
    for key, value in inputs.items():
        key_path = f"{path}{key}"
        if key not in supported:
            raise UnsupportedInputError(f"{owner}: the adapter does not support the input {key_path}")
        nested = supported[key]
        if nested is None:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, Mapping):
                check_input_keys(nested, item, owner, f"{key_path}.")
