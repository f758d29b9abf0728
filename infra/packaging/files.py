"""List the files of the bundle: those that git tracks or, where no repository exists, those of known types."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

# Trainyard: this repository, or the folder of the installed packages.
ROOT = Path(__file__).parents[2]
# Types of the files that nodes use. `.md` is not among them: nodes do not read documents.
SUFFIXES = frozenset({".py", ".yml", ".sh", ".j2", ".txt", ".in", ".whl", ".json", ".cfg"})


def list_files(root: Path, folders: Sequence[str]) -> list[str]:
    """Return the paths, relative to `root`, of the files in `folders` that belong to the project, sorted.

    A file belongs to the project if it has a type of SUFFIXES and, where `root` is in a git repository that tracks
    files of the folders, if git tracks it.
    """
    names = git_files(root, "--cached", folders=folders) or _walk(root, folders)
    return sorted(name for name in names if _has_known_type(name) and (root / name).is_file())


def untracked_files(root: Path, folders: Sequence[str]) -> list[str]:
    """Return the files that `list_files` omits because git does not track or ignore them, sorted."""
    if not git_files(root, "--cached", folders=folders):
        return []
    return sorted(filter(_has_known_type, git_files(root, "--others", "--exclude-standard", folders=folders)))


def git_files(root: Path, *options: str, folders: Sequence[str] = ()) -> list[str]:
    """Return what `git ls-files` prints, relative to `root`; nothing without git, or outside a repository."""
    # A git hook that runs the program sets GIT_DIR, which need not be the repository of `root`.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "ls-files", "-z", *options, "--", *folders]
    try:
        listed = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return [name for name in listed.stdout.split("\0") if name] if listed.returncode == 0 else []


def _walk(root: Path, folders: Sequence[str]) -> Iterator[str]:
    for folder in folders:
        for path in (root / folder).rglob("*"):
            parts = path.relative_to(root).parts
            if not any(part.startswith(".") or part == "__pycache__" for part in parts):
                yield "/".join(parts)


def _has_known_type(name: str) -> bool:
    return Path(name).suffix in SUFFIXES
