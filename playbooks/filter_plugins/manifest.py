"""Ansible filter `manifest_problems`: validate the manifest against its JSON Schema."""

from collections.abc import Callable
from typing import Any

from jsonschema import Draft202012Validator


def manifest_problems(manifest: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """Return one message per violation of the schema; an empty list for a valid manifest.

    Each message names the module of the Pulumi program that produces the key: the schema has it as `producer`, per
    property or for the whole manifest.
    """
    problems = []
    for error in sorted(Draft202012Validator(schema).iter_errors(manifest), key=lambda item: list(item.path)):
        keys = [str(part) for part in error.path]
        missing_key = error.message.split("'")[1] if error.validator == "required" else ""
        property_schema = schema["properties"].get(keys[0] if keys else missing_key, {})
        producer = property_schema.get("producer", schema["producer"])
        problems.append(f"{'.'.join(keys) or 'manifest'}: {error.message} (produced by {producer})")
    return problems


class FilterModule:
    """Entry point that Ansible loads."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"manifest_problems": manifest_problems}
