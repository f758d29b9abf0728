"""Golden files of resource graphs, for review: `python -m tests.infra.graphs` writes them."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from rehearsal.adapter.deployment import Deployment, Resource

FOLDER = Path(__file__).parent
GOLDEN = ("a100-cluster", "h200-cluster", "local", "spot-cluster")
_SHA256 = re.compile("[0-9a-f]{64}")
_IN_JSON = ("policy", "assumeRolePolicy", "content")


class _Plain(yaml.SafeDumper):
    """A dumper without anchors, so that each resource is complete."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def graph_of(run: Deployment) -> str:
    """Return dependencies, options and inputs of each resource, sorted by URN without project and stack.

    Placeholders replace values that change with the code on nodes: hashes of archives, and user data.
    """
    resources = {resource.urn.split("::", 2)[2]: _resource(resource) for resource in run.resources.values()}
    return yaml.dump(dict(sorted(resources.items())), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


def path_of(stack: str) -> Path:
    return FOLDER / f"{stack}.yaml"


def _short(urn: str) -> str:
    """Return type and name, such as `Group head`."""
    kind, name = urn.split("::")[2:]
    return f"{kind.rpartition(':')[2]} {name}"


def _resource(resource: Resource) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    options = {
        "retain_on_delete": resource.retain_on_delete,
        "protect": resource.protect,
        "ignore_changes": list(resource.ignore_changes),
        "import": resource.import_id,
        "aliases": list(resource.aliases),
        "timeouts": dict(resource.timeouts),
        "depends_on": sorted(_short(urn) for urn in resource.dependencies),
    }
    fields |= {key: value for key, value in options.items() if value}
    if resource.inputs:
        fields["inputs"] = {key: _input(key, value) for key, value in sorted(resource.inputs.items())}
    return fields


def _input(key: str, value: Any) -> Any:
    if key == "userData":
        return "<user-data>"
    if key == "source":
        return "<archive>"
    if key in _IN_JSON and isinstance(value, str):
        return _input("", json.loads(value))
    if isinstance(value, dict):
        return {name: _input(name, item) for name, item in sorted(value.items())}
    if isinstance(value, list):
        return [_input("", item) for item in value]
    return _SHA256.sub("<sha256>", value) if isinstance(value, str) else value
