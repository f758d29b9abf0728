"""Applies the current stack file to a kept rehearsal, with the changes of a rehearsal."""

from pathlib import Path
from typing import Any

import yaml

from rehearsal.engine.plugin import provider_config
from rehearsal.engine.workspace import Workspace
from rehearsal.workspace import DEFAULT_REGION, Options, read_stack
from trainyard.errors import InputError, Problem
from trainyard.models.kept_rehearsal import STACK_FILE, find_kept_rehearsal


def write_stack_settings(options: Options, file: Path) -> dict[str, Any]:
    """Write the stack file as it is rehearsed to a file. Returns its config. Raises InputError."""
    config, _, _ = read_stack(options)
    file.write_text(yaml.safe_dump({"config": config}))
    return config


def update_stack_settings(options: Options) -> None:
    """Read the stack file again, for the next `pulumi up` of the rehearsal. Raises InputError."""
    kept = find_kept_rehearsal(options.folder)
    if kept is None:
        reason, fix = "no rehearsal of this stack is kept", f"Run trainyard rehearse --keep -s {options.stack}"
        raise InputError([Problem("--stack", options.stack, reason, fix, "not_kept")])
    config = write_stack_settings(options, options.folder / STACK_FILE)
    if kept.pulumi_folder is None:
        return
    if options.engine == "pulumi-aws":
        config |= provider_config(kept.endpoint, str(config.get("aws:region", DEFAULT_REGION)))
    Workspace(options.folder / "pulumi", options.project, options.stack, {}).write_config(config)
