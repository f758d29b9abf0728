"""A filter for preflight: what is wrong with the manifest, by its JSON Schema, and who makes each key."""

from collections.abc import Callable
from typing import Any

from jsonschema import Draft202012Validator

# Key of the manifest -> the module of the Pulumi program that produces it.
PRODUCERS = {
    "bundle": "infra/packaging/bundle.py",
    "data_bucket": "infra/components/storage.py",
    "staging_bucket": "infra/components/storage.py",
    "head": "infra/components/head.py",
    "groups": "infra/components/workers.py",
    "fsx": "infra/components/filesystem.py",
}


def manifest_problems(manifest: dict[str, Any], schema: dict[str, Any]) -> list[str]:
    """One sentence a problem, empty for a good manifest."""
    found = []
    for error in sorted(Draft202012Validator(schema).iter_errors(manifest), key=lambda item: list(item.path)):
        keys = [str(part) for part in error.path]
        absent = error.message.split("'")[1] if error.validator == "required" else ""
        top = keys[0] if keys else absent
        where = ".".join(keys) or "manifest"
        found.append(f"{where}: {error.message} (made by {PRODUCERS.get(top, 'infra/components/manifest.py')})")
    return found


class FilterModule:
    """Ansible's entry point."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"manifest_problems": manifest_problems}
