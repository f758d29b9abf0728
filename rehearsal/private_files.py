"""Files and folders of a rehearsal that only the user who runs it can read: they contain keys and tokens."""

import os
from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Create a folder and its parents, with mode 0700 of the folder itself, also if it exists."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def write_private_file(file: Path, text: str) -> None:
    """Write a file of mode 0600. A reader never sees a part of it."""
    partial = file.with_name(f"{file.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(text)
    partial.replace(file)
