"""Check the archive of a custom job, and resolve its requirements, without AWS: for the preview and for the launch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trainyard.config.shared_settings import JobSpec
from trainyard.errors import InputError
from trainyard.job_source.archive import read_files, unpacked
from trainyard.job_source.environment import DEFAULT_PYTHON, NodeEnvironment
from trainyard.job_source.resolution import REQUIREMENTS, ToolError, describe_failure, resolve
from trainyard.job_source.static_checks import check_source


@dataclass(frozen=True, kw_only=True)
class JobSource:
    """The source of a custom job. `archive`: the tar archive. `environment`: that of the nodes; None: not known."""

    job: JobSpec
    archive: bytes
    environment: NodeEnvironment | None

    @cached_property
    def files(self) -> dict[str, bytes]:
        """The files of the archive: path -> content."""
        return read_files(self.archive)

    @property
    def has_requirements(self) -> bool:
        """Whether the nodes install requirements of the job: its image has all packages of a job in a container."""
        return REQUIREMENTS in self.files and self.job.container is None

    @property
    def resolves_locally(self) -> bool:
        """Whether the requirements are resolved on this machine, and not by the nodes."""
        return self.has_requirements and self.job.resolve_requirements == "launch" and self.environment is not None

    def check_files(self, added_modules: frozenset[str] | None) -> None:
        """Check syntax and imports. Raises InputError.

        `added_modules`: modules that the requirements add to the environment of the nodes; None: not known.
        """
        command, environment = self.job.command, self.environment
        assert command is not None, "a job with a source has a command"
        is_known = environment is not None and self.job.container is None and added_modules is not None
        # PYTHONPATH may name any folder of the nodes.
        is_known = is_known and "PYTHONPATH" not in self.job.environment
        modules = (
            environment.modules | added_modules if environment and is_known and added_modules is not None else None
        )
        python = environment.python if environment else DEFAULT_PYTHON
        if problems := check_source(self.files, command[0], python, modules):
            raise InputError(problems)

    @contextmanager
    def resolved(self, index: Sequence[str], index_name: str | None) -> Iterator[tuple[Path, list[str]]]:
        """Yield the folder of the unpacked source and the requirements that the nodes' environment does not satisfy.

        `index`: options that select the package index `index_name`. Raises InputError for requirements that cannot be
        resolved, also if the body raises ToolError.
        """
        assert self.environment is not None, "the caller has checked it"
        with unpacked(self.archive) as folder:
            try:
                yield folder, resolve(folder, self.environment, index) or []
            except ToolError as error:
                raise InputError([describe_failure(folder, error, index_name)]) from None
