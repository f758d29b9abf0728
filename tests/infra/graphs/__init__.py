"""The graph of each shipped stack as text that a reviewer reads in a diff: `python -m tests.infra.graphs`."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from rehearsal.adapter.graph import Deployment, Resource

FOLDER = Path(__file__).parent
_SHA256 = re.compile("[0-9a-f]{64}")
_IN_JSON = ("policy", "assumeRolePolicy", "content")


class _Plain(yaml.SafeDumper):
    """Without anchors: each resource is read by itself."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def graph_of(run: Deployment) -> str:
    """Every registration in the order of its name: parent, dependencies, options, inputs. What any change of the
    code on nodes would change (hashes of archives, user-data) stands as a placeholder."""
    told = {_short(one.urn): _resource(one) for one in run.resources.values()}
    return yaml.dump(dict(sorted(told.items())), Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


def path_of(stack: str) -> Path:
    return FOLDER / f"{stack}.yaml"


def _short(urn: str) -> str:
    """Type and name without module and engine's prefix: Instance head."""
    kind, name = urn.split("::")[2:]
    return f"{kind.rpartition(':')[2]} {name}"


def _resource(one: Resource) -> dict[str, Any]:
    told: dict[str, Any] = {"parent": _short(one.parent) if one.parent.count("::") == 3 else ""}
    options = {
        "retain_on_delete": one.retain_on_delete,
        "protect": one.protect,
        "ignore_changes": list(one.ignore_changes),
        "import": one.import_id,
        "depends_on": sorted(_short(urn) for urn in one.dependencies),
    }
    told |= {key: value for key, value in options.items() if value}
    if one.inputs:
        told["inputs"] = {key: _input(key, value) for key, value in sorted(one.inputs.items())}
    return told


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
