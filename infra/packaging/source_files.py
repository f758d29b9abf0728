"""List the files of a custom job: those that git does not ignore, without those of .trainyardignore."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pathspec import GitIgnoreSpec

from infra.packaging.files import git_files

IGNORE_FILE = ".trainyardignore"
_GIT_IGNORE_FILE = ".gitignore"
_ALWAYS_IGNORED = (".git", "__pycache__/", "*.pyc", ".venv/", IGNORE_FILE)


def source_files(folder: Path, project: Path) -> list[str]:
    """Return the paths, relative to `folder`, of the files that nodes get, sorted.

    In a git repository these are the tracked and the new files, without those that its ignore files exclude. Elsewhere,
    and in a folder that its repository ignores, `.gitignore` files in the folder count. `.trainyardignore` in the
    folder excludes more, in the syntax of .gitignore. The project's own folder does not belong to the job when it is
    below `folder`, nor does its `build` folder: a changed stack file would change the job.
    """
    ignored = _ignored_files(folder, project)
    names = list(_repository_files(folder)) or _walk(folder, Path(), {})
    return sorted(name for name in names if not ignored.match_file(name))


def _ignored_files(folder: Path, project: Path) -> GitIgnoreSpec:
    own = project / "build" if project.resolve() == folder.resolve() else project
    lines = [*_ALWAYS_IGNORED, *_read_lines(folder / IGNORE_FILE)]
    if own.resolve().is_relative_to(folder.resolve()):
        lines.append(f"/{_escape(own.resolve().relative_to(folder.resolve()).as_posix())}/")
    return GitIgnoreSpec.from_lines(lines)


def _repository_files(folder: Path) -> Iterator[str]:
    """Yield the files of the folder that git does not ignore, also those of submodules and nested repositories."""
    for name in git_files(folder, "--cached", "--others", "--exclude-standard"):
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            yield from (f"{name.rstrip('/')}/{nested}" for nested in _repository_files(path))
        elif path.is_symlink() or path.exists():  # a deleted file may still be tracked
            yield name


def _walk(folder: Path, parent: Path, ignore_files: Mapping[Path, GitIgnoreSpec]) -> Iterator[str]:
    """Yield the files below `parent` that no ignore file excludes. All paths are relative to `folder`."""
    lines = _read_lines(folder / parent / _GIT_IGNORE_FILE)
    ignore_files = {parent: GitIgnoreSpec.from_lines(lines), **ignore_files}
    for entry in os.scandir(folder / parent):
        path, is_folder = parent / entry.name, entry.is_dir(follow_symlinks=False)
        if _is_ignored(path, is_folder, ignore_files):
            continue
        if is_folder:
            yield from _walk(folder, path, ignore_files)
        else:
            yield path.as_posix()


def _is_ignored(path: Path, is_folder: bool, ignore_files: Mapping[Path, GitIgnoreSpec]) -> bool:
    """Return what the nearest ignore file with a matching pattern decides. `ignore_files`: by folder, nearest first."""
    for parent, spec in ignore_files.items():
        name = path.relative_to(parent).as_posix()
        decision = spec.check_file(f"{name}/" if is_folder else name).include
        if decision is not None:
            return decision
    return False


def _read_lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.is_file() else []


def _escape(name: str) -> str:
    return "".join(f"\\{character}" if character in "\\*?[]!# " else character for character in name)
