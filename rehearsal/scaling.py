"""What of a stack's settings is changed so that it fits this machine; each change stands in the report."""

import copy
import sys
from typing import Any

from contract.report import Scaled

BRING_UP_MINUTES = 5.0


def scale(raw: dict[str, Any], nodes: int | None) -> tuple[dict[str, Any], list[Scaled]]:
    """The settings that are rehearsed, from those of the stack file, and what was changed and why."""
    settings, changes = copy.deepcopy(raw), []

    def put(section: str, key: str, value: Any, what: str, by: str, why: str) -> None:
        part = settings.setdefault(section, {}) if section else settings
        if isinstance(part, dict) and part.get(key) != value:
            part[key] = value
            changes.append(Scaled(what=what, by=by, why=why))

    if nodes is not None and settings.get("nodes") != nodes:
        put("", "nodes", nodes, f"{settings.get('nodes')} nodes", f"{nodes} nodes", "asked for on the command line")
    put("node", "system", "as-is", "roles that change a system", "none: they are skipped", "a node here is a folder")
    put(
        "node",
        "venv",
        sys.prefix,
        "a Python environment on each node",
        "the one that runs the rehearsal",
        "5 GB a node would be installed anew",
    )
    put(
        "launch",
        "bring_up_minutes",
        BRING_UP_MINUTES,
        "the stack's bring-up deadline",
        f"{BRING_UP_MINUTES:g} minutes",
        "nothing is installed",
    )
    return settings, changes
