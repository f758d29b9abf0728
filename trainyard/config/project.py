"""The Pulumi project of the user: a folder with stack files, in this repository or in a repository of the user."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainyard.config import CONFIG_KEY
from trainyard.config.stack_config import find_stack_file, stack_names
from trainyard.errors import InputError, Problem

PROJECT_ROOT = Path(__file__).parents[2]  # Trainyard itself: this repository, or the folder of the installed packages
FOLDER = "trainyard"  # in a repository of the user: created by `trainyard init`
PROJECT_FILE = "Pulumi.yaml"
NAME = "trainyard"  # the namespace of `trainyard:cluster`, and the default name of a project


@dataclass(frozen=True)
class Project:
    """A Pulumi project.

    `folder`: to which `job.source` is relative, and below which `build/` has reports and archives. `stacks`: of the
    stack files. `program`: of the Pulumi program, in which the engine works. `name`: of the Pulumi project.
    Tags and IAM paths contain it: an account may have stacks of the same name in several projects.
    """

    folder: Path
    stacks: Path
    program: Path
    name: str = NAME

    @property
    def build(self) -> Path:
        """The folder of generated files."""
        return self.folder / "build"

    @property
    def archives(self) -> Path:
        """The folder of the archives that the Pulumi program uploads."""
        return self.build / "archives"

    @property
    def rehearsals(self) -> Path:
        """The folder with a folder for the rehearsal of each stack."""
        return self.build / "rehearsal"

    def rehearsal(self, stack: str) -> Path:
        """Return the folder of a stack's rehearsal, which need not exist."""
        return self.rehearsals / stack

    @property
    def stack_names(self) -> list[str]:
        """The names of the stacks that have a file."""
        return stack_names(self.stacks)

    def stack_file(self, stack: str) -> Path:
        """Return the path of a stack's file, which need not exist."""
        return self.stacks / f"Pulumi.{stack}.yaml"

    def find_stack_file(self, stack: str) -> Path:
        """Return the path of a stack's file. Raises InputError when it does not exist."""
        return find_stack_file(stack, self.stacks)

    def source(self, stack: str) -> str:
        """Return the name of a stack's file for messages."""
        return f"{self.stacks.name}/{self.stack_file(stack).name}"

    def require_program(self) -> Path:
        """Return the program's folder. Raises InputError when it has none."""
        if not (self.program / "__main__.py").is_file():
            reason = "the folder has no Pulumi program __main__.py"
            fix = "Create it with trainyard init NAME, which keeps existing stack files"
            raise InputError([Problem("project", str(self.program), reason, fix, "program_missing")])
        return self.program


def find_project(start: Path) -> Project:
    """Return the project of the folder `start`, else this repository.

    When Trainyard is installed, it is `start` instead of a repository, and then has no stack files. Raises InputError
    for an unreadable Pulumi.yaml.
    """
    return find_own_project(start) or read_project(PROJECT_ROOT if _is_project(PROJECT_ROOT) else start.absolute())


def find_own_project(start: Path) -> Project | None:
    """Return the project of the folder `start`, if any.

    That is the first of `start` and the folders above it that has a Pulumi.yaml of Trainyard, or a folder `trainyard`
    with stack files that is no clone of Trainyard. Raises InputError for an unreadable Pulumi.yaml.
    """
    start = start.absolute()
    for folder in (start, *start.parents):
        if _is_project(folder):
            return read_project(folder)
        own = folder / FOLDER
        if (own / ".git").exists():
            continue
        if _is_project(own) or any(own.glob("Pulumi.*.yaml")):
            return read_project(own)
    return None


def read_project(folder: Path) -> Project:
    """Return the project in a folder; its Pulumi.yaml may be missing. Raises InputError for an unreadable one."""
    document = _read_document(folder)
    main = folder / str(document.get("main", "."))
    return Project(
        folder=folder,
        stacks=folder / str(document.get("stackConfigDir", ".")),
        program=main.parent if main.is_file() else main,
        name=str(document.get("name") or NAME),
    )


def engine_project(program: Path, virtualenv: str, name: str = NAME) -> dict[str, Any]:
    """Return the content of a Pulumi.yaml in another folder. `virtualenv`: the Python environment of the program."""
    runtime = {"name": "python", "options": {"toolchain": "pip", "virtualenv": virtualenv}}
    return {"name": name, "main": str(program), "runtime": runtime}


def _is_project(folder: Path) -> bool:
    """Whether the folder has a Pulumi.yaml with the default name, or one and stack files with Trainyard's settings."""
    if not (folder / PROJECT_FILE).is_file():
        return False
    document = _read_document(folder)
    if document.get("name") == NAME:
        return True
    files = (folder / str(document.get("stackConfigDir", "."))).glob("Pulumi.*.yaml")
    return any(f"{CONFIG_KEY}:" in file.read_text(encoding="utf-8", errors="replace") for file in files)


def _read_document(folder: Path) -> dict[str, Any]:
    file = folder / PROJECT_FILE
    if not file.is_file():
        return {}
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        fix = "Correct the file, or name another folder with -C"
        raise InputError([Problem(str(file), None, f"cannot be read: {error}", fix, "project_unreadable")]) from None
    return document if isinstance(document, dict) else {}
