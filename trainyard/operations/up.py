"""Run `pulumi up` or `pulumi preview` for a stack, on AWS or in a kept rehearsal."""

import json
import shlex
from typing import Any

from pydantic import Field

from trainyard.base import StrictModel
from trainyard.config.project import Project
from trainyard.errors import InputError, Problem
from trainyard.operations.kept_rehearsal import current_kept_rehearsal, update_stack_settings
from trainyard.operations.pulumi_cli import PulumiProject, require_pulumi


class UpResult(StrictModel):
    """`trainyard up --json`."""

    stack: str = Field(description="Pulumi stack.")
    preview: bool = Field(description="Whether only the preview ran.")
    pulumi_exit_status: int = Field(description="Exit status of Pulumi.")
    outputs: dict[str, Any] = Field(description="Outputs of the stack; empty after a preview or a failure.")


def up(stack: str, project: Project, pulumi: PulumiProject, *, preview: bool, confirmed: bool) -> UpResult:
    """Run Pulumi, whose output goes to stderr. `confirmed`: without its question whether to perform the update.

    In a kept rehearsal, the current stack file is applied to its project first. Raises InputError without the Pulumi
    CLI, its login, project or stack, and for a stack file that is invalid there.
    """
    if not pulumi.has_stack(stack):
        reason, fix = (
            "the Pulumi backend has no such stack",
            f"Create it: pulumi stack init {stack} -C {shlex.quote(str(pulumi.folder))}",
        )
        raise InputError([Problem("--stack", stack, reason, fix, "backend_stack_missing")])
    if (kept := current_kept_rehearsal(stack, project)) is not None:
        update_stack_settings(kept, project)
    arguments = ["preview", "--diff"] if preview else ["up", *(["--yes"] if confirmed else [])]
    exit_status = pulumi.run(*arguments, "--stack", stack, interactive=True)
    outputs = {} if preview or exit_status else read_outputs(pulumi, stack)
    return UpResult(stack=stack, preview=preview, pulumi_exit_status=exit_status, outputs=outputs)


def read_outputs(pulumi: PulumiProject, stack: str) -> dict[str, Any]:
    """Return the outputs of the stack. Raises RuntimeError when Pulumi fails."""
    completed = pulumi.query(require_pulumi(), "stack", "output", "--json", "--stack", stack, "--non-interactive")
    if completed.returncode:
        raise RuntimeError(f"pulumi stack output failed: {completed.stderr.strip()}")
    outputs: dict[str, Any] = json.loads(completed.stdout)
    return outputs
