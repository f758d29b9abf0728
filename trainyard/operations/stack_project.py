"""The Pulumi project with which `trainyard up` and `trainyard destroy` change a stack."""

from pathlib import Path

from trainyard.config.project import Project
from trainyard.operations.kept_rehearsal import current_kept_rehearsal, kept_pulumi_folder
from trainyard.operations.pulumi_cli import PulumiProject, require_pulumi


def stack_project(stack: str, project: Project, folder: Path | None) -> PulumiProject:
    """Return the project of the stack: in a kept rehearsal its own, else that in `folder`, by default `project`.

    Raises InputError without the Pulumi CLI, and for a rehearsal that is kept without it.
    """
    kept = current_kept_rehearsal(stack, project)
    pulumi = PulumiProject(folder or project.folder)
    if kept is not None:
        pulumi = PulumiProject(kept_pulumi_folder(kept), kept.pulumi_environment)
    require_pulumi()
    return pulumi
