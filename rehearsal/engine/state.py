"""What stands of the program, from the engine's own state (`pulumi stack export`)."""

from collections.abc import Mapping
from typing import Any

from rehearsal.adapter.graph import STACK_TYPE, Resource

PROVIDER_TYPE = "pulumi:providers:"  # the engine keeps those that it asks among the resources


def resources_of(state: Mapping[str, Any], seconds: Mapping[str, float]) -> dict[str, Resource]:
    """By URN, in the order in which they were made. `seconds`: how long each took."""
    return {
        one["urn"]: Resource(
            urn=one["urn"],
            type=one["type"],
            name=one["urn"].rpartition("::")[2],
            parent=one.get("parent", ""),
            dependencies=frozenset(one.get("dependencies", [])),
            custom=one["custom"],
            retain_on_delete=one.get("retainOnDelete", False),
            protect=one.get("protect", False),
            delete_before_replace=False,  # a wish of the program's, which the state does not keep
            ignore_changes=tuple(one.get("ignoreChanges", [])),
            import_id=one.get("importID", ""),
            inputs=one.get("inputs", {}),
            id=one.get("id", ""),
            outputs=one.get("outputs", {}),
            seconds=seconds.get(one["urn"], 0.0),
            made=True,
        )
        for one in _entries(state)
        if one["type"] != STACK_TYPE and not one["type"].startswith(PROVIDER_TYPE) and not one.get("delete")
    }


def exports_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """What the program exports."""
    (stack,) = [one for one in _entries(state) if one["type"] == STACK_TYPE] or [{}]
    found: dict[str, Any] = stack.get("outputs", {})
    return found


def _entries(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = state["deployment"].get("resources") or []
    return found
