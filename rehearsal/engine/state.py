"""Reads resources and exports from the engine's state (`pulumi stack export`)."""

from collections.abc import Mapping
from typing import Any

from rehearsal.adapter.deployment import STACK_TYPE, Resource

PROVIDER_TYPE = "pulumi:providers:"  # the state lists providers among the resources


def read_resources(state: Mapping[str, Any], seconds: Mapping[str, float]) -> dict[str, Resource]:
    """Return the resources by URN, in the order of creation. `seconds`: URN -> duration of the creation."""
    return {
        entry["urn"]: Resource(
            urn=entry["urn"],
            type=entry["type"],
            name=entry["urn"].rpartition("::")[2],
            parent=entry.get("parent", ""),
            dependencies=frozenset(entry.get("dependencies", [])),
            custom=entry["custom"],
            retain_on_delete=entry.get("retainOnDelete", False),
            protect=entry.get("protect", False),
            delete_before_replace=False,  # an option of the program that the state does not contain
            ignore_changes=tuple(entry.get("ignoreChanges", [])),
            import_id=entry.get("importID", ""),
            inputs=entry.get("inputs", {}),
            id=entry.get("id", ""),
            outputs=entry.get("outputs", {}),
            seconds=seconds.get(entry["urn"], 0.0),
            exists=True,
        )
        for entry in _entries(state)
        if entry["type"] != STACK_TYPE and not entry["type"].startswith(PROVIDER_TYPE) and not entry.get("delete")
    }


def read_exports(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the program's exports, which are the outputs of the stack resource."""
    (stack,) = [entry for entry in _entries(state) if entry["type"] == STACK_TYPE] or [{}]
    outputs: dict[str, Any] = stack.get("outputs", {})
    return outputs


def _entries(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = state["deployment"].get("resources") or []
    return entries
