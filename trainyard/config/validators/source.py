"""Validators of the settings with which the source of a custom job is checked before nodes are launched."""

from collections.abc import Iterator
from pathlib import Path

from trainyard.config.settings import StackSettings
from trainyard.config.validation_errors import invalid_setting
from trainyard.errors import Problem


def dry_run_is_possible(settings: StackSettings, root: Path) -> Iterator[Problem]:
    """Only a custom job without a container has a dry run on the operator's machine."""
    job = settings.job
    if job.dry_run is None:
        return
    value = list(job.dry_run)
    if job.source is None:
        yield invalid_setting("job.dry_run", value, "the built-in trainer has no dry run", "Remove it")
    elif job.container is not None:
        reason = "the job runs in a container, which the launch does not start on its machine"
        yield invalid_setting("job.dry_run", value, reason, "Remove it")


VALIDATORS = (dry_run_is_possible,)
