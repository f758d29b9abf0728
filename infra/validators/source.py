"""Validate the source of a custom job: its files and imports, and its requirements if an index can be read here."""

from pathlib import Path

from infra.packaging.archive import Packed
from trainyard.config.settings import StackSettings
from trainyard.errors import InputError
from trainyard.job_source.check import JobSource
from trainyard.job_source.environment import find_environment, image_python
from trainyard.package_index import index_options


def validate_source(settings: StackSettings, packed: Packed) -> str | None:
    """Raise InputError for a source that cannot run or requirements that cannot be resolved.

    The result is a warning about requirements that the launch checks: their package index cannot be read here. Only
    the launch knows the Python of an AMI that the settings name by its id.
    """
    job, python = settings.job, image_python(settings.worker_image)
    environment = find_environment(settings.node.venv, python)
    source = JobSource(job=job, archive=packed.data, environment=environment)
    source.check_files(None if source.has_requirements else frozenset())
    index = settings.node.package_index
    is_remote = settings.node.s3_wheels is not None or (index is not None and _is_missing(index))
    is_known = environment is not None and (python is not None or environment.interpreter is not None)
    if not source.resolves_locally or is_remote or not is_known:
        return None
    try:
        with source.resolved(index_options(index), index) as (_, added):
            pass
    except InputError as error:
        if error.problems[0].code != "package_index_unreachable":
            raise
        return f"the launch resolves the requirements of the job. {error}"
    if not added:
        source.check_files(frozenset())
    return None


def _is_missing(index: str) -> bool:
    path = Path(index.removeprefix("file://"))
    return path.is_absolute() and not path.exists()
