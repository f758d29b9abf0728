"""The Pulumi project with which `trainyard up` and `trainyard destroy` change a stack."""

from pathlib import Path

from trainyard.operations.kept_rehearsal import current_kept_rehearsal, kept_pulumi_folder
from trainyard.operations.pulumi_cli import PulumiProject, require_pulumi
from trainyard.operations.stack_file import PROJECT_ROOT


def stack_project(stack: str, folder: Path | None) -> PulumiProject:
    """Return the project of the stack: in a kept rehearsal its own, else that in `folder`, by default the repository's.

    Raises InputError without the Pulumi CLI, and for a rehearsal that is kept without it.
    """
    kept = current_kept_rehearsal(stack)
    project = PulumiProject(folder or PROJECT_ROOT)
    if kept is not None:
        project = PulumiProject(kept_pulumi_folder(kept), kept.pulumi_environment)
    require_pulumi()
    return project
