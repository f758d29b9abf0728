"""Settings of a valid stack, and copies with changed keys."""

import copy
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

GOOD: Mapping[str, Any] = MappingProxyType(
    {
        "instance_type": "c7i.xlarge",
        "nodes": 2,
        "job": {"name": "line", "dataset": "d", "processes_per_node": 2, "train": {}},
    }
)


def changed(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of GOOD with changed values. `changes` maps paths, such as `job.train`, to values."""
    raw = copy.deepcopy(dict(GOOD))
    for path, value in changes.items():
        *above, last = path.split(".")
        part = raw
        for name in above:
            part = part.setdefault(name, {})
        part[last] = value
    return raw
