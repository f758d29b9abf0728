"""The requirements of the user's own job: `source_environment.py LIST INDEX PYTHON ARGUMENT...`, in torchrun's place.

Becomes `PYTHON ARGUMENT...` where PYTHON's environment has what LIST asks for, else the same by the Python of one made
for that list. What is in PYTHON's environment and fits stays as it is, linked and not copied: torch takes gigabytes. uv
installs the rest beside it, from the stack's index. Being a process of its own, it holds up no agent.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # it is started as a file, in the folder of the user's sources

from trainyard.node.bootstrap import BASE, Fatal  # noqa: E402
from trainyard.node.environments.node import index_options, run  # noqa: E402

LIST = "requirements.txt"
FAILED = 78  # EX_CONFIG of sysexits.h: told apart from what torchrun ends with
_COMPLAINT = f"{LIST} of the job"
_TOLD_CHARACTERS = 800
UV = (sys.executable, "-m", "uv", "--no-progress")


def has_all(python: Path, wanted: Path) -> bool:
    """Whether that environment has what the list asks for: uv finds nothing to do, and asks nobody."""
    look = [*UV, "pip", "install", "--offline", "--no-index", "--dry-run", "--python", str(python), "-r", str(wanted)]
    said = subprocess.run(look, capture_output=True, text=True, check=False)
    return said.returncode == 0 and "Would make no changes" in said.stderr


def environment(python: Path, wanted: Path, index: str | None) -> Path:
    """The Python of an environment like `python`'s that has all of the list. Made once, and there when it is whole.

    Raises Fatal with uv's last words.
    """
    packages = _packages(python)
    identity = hashlib.sha256(f"{packages.resolve()}\n{wanted.read_text()}".encode()).hexdigest()[:16]
    folder = BASE / "job" / f"environment-{identity}"
    if not folder.exists():
        work = folder.with_name(f"{folder.name}.{os.getpid()}")
        try:
            run([*UV, "venv", "--relocatable", "--python", str(python), str(work)])
            made = work / "bin/python"
            shutil.copytree(packages, _packages(made), symlinks=True, copy_function=_link, dirs_exist_ok=True)
            # It may replace what is there: the files are its own then, no others' are written to.
            options = ["--link-mode", "copy", "--compile-bytecode", *index_options(index)]
            run([*UV, "pip", "install", "--python", str(made), *options, "-r", str(wanted)])
            work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder / "bin/python"


def _packages(python: Path) -> Path:
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())


def _link(source: str, target: str) -> None:
    """The file once more; a copy where the two lie on different disks, and of what `uv venv` has put there itself."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def complaint(said: str) -> str:
    """Of all that this program has said, why it has failed."""
    return " ".join(said[said.rfind(_COMPLAINT) :].split())[:_TOLD_CHARACTERS]


def main() -> int:
    wanted, index, python, *arguments = sys.argv[1:]
    try:
        chosen = Path(python) if has_all(Path(python), Path(wanted)) else environment(Path(python), Path(wanted), index)
    except (Fatal, OSError, subprocess.CalledProcessError) as error:
        print(f"{_COMPLAINT}: {error}", file=sys.stderr)
        return FAILED
    return os.execv(chosen, [str(chosen), *arguments])  # noqa: S606 (it does not return)


if __name__ == "__main__":
    sys.exit(main())
