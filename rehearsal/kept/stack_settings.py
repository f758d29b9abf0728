"""Writes the changed stack file into the Pulumi project of a kept rehearsal, with the rehearsal's substitutions."""

from rehearsal.engine.plugin import provider_config
from rehearsal.engine.workspace import Workspace
from rehearsal.workspace import DEFAULT_REGION, Options, read_stack
from trainyard.errors import InputError, Problem
from trainyard.models.kept_rehearsal import find_kept_rehearsal


def update_stack_settings(options: Options) -> None:
    """Read the stack file of a kept rehearsal again for the next `pulumi up`. Raises InputError."""
    kept = find_kept_rehearsal(options.folder)
    if kept is None or kept.pulumi_folder is None:
        reason = "no rehearsal of this stack is kept with the Pulumi CLI"
        fix = f"Run trainyard rehearse --keep --engine pulumi -s {options.stack}"
        raise InputError([Problem("--stack", options.stack, reason, fix, "not_kept")])
    config, _, _ = read_stack(options)
    if options.engine == "pulumi-aws":
        config |= provider_config(kept.endpoint, str(config.get("aws:region", DEFAULT_REGION)))
    Workspace(options.folder / "pulumi", options.root, options.stack, {}).write_config(config)
