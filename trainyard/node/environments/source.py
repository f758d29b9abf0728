"""Install the requirements of a custom job, then run it: `source.py REQUIREMENTS INDEX PYTHON ARGUMENT...`.

It replaces itself by `PYTHON ARGUMENT...` if the environment of PYTHON satisfies REQUIREMENTS. Otherwise it creates an
environment for these requirements and uses its Python. Packages of PYTHON's environment that satisfy them are linked
and not copied, because torch takes gigabytes; uv installs the others from the stack's index. It runs in a process
separate from the agent, so that the agent is not blocked.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # this file runs as a script, in the folder of the user's sources

from trainyard.node.bootstrap import BASE, BootstrapError  # noqa: E402
from trainyard.node.environments.node import index_options, run_command  # noqa: E402

REQUIREMENTS = "requirements.txt"
EXIT_FAILED = 78  # EX_CONFIG of sysexits.h: torchrun does not use it
_ERROR_PREFIX = f"{REQUIREMENTS} of the job"
_ERROR_CHARACTERS = 800
UV = (sys.executable, "-m", "uv", "--no-progress")


def satisfies(python: Path, requirements: Path) -> bool:
    """Whether the environment of `python` satisfies the requirements: uv would install nothing. Works offline."""
    command = [*UV, "pip", "install", "--offline", "--no-index", "--dry-run", "--python", str(python), "-r"]
    result = subprocess.run([*command, str(requirements)], capture_output=True, text=True, check=False)
    return result.returncode == 0 and "Would make no changes" in result.stderr


def create_environment(python: Path, requirements: Path, index: str | None) -> Path:
    """Python of an environment that extends that of `python` by the requirements. It is created once, atomically.

    Raises BootstrapError with the last lines of uv's output.
    """
    packages = _packages(python)
    identity = hashlib.sha256(f"{packages.resolve()}\n{requirements.read_text()}".encode()).hexdigest()[:16]
    folder = BASE / "job" / f"environment-{identity}"
    if not folder.exists():
        work = folder.with_name(f"{folder.name}.{os.getpid()}")
        try:
            run_command([*UV, "venv", "--relocatable", "--python", str(python), str(work)])
            created = work / "bin/python"
            shutil.copytree(packages, _packages(created), symlinks=True, copy_function=_link, dirs_exist_ok=True)
            # uv replaces a package as new files, so it does not write to the linked files of another environment.
            options = ["--link-mode", "copy", "--compile-bytecode", *index_options(index)]
            run_command([*UV, "pip", "install", "--python", str(created), *options, "-r", str(requirements)])
            work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder / "bin/python"


def _packages(python: Path) -> Path:
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def _link(source: str, target: str) -> None:
    """Link a file; copy it if the two are on different disks, or if `uv venv` has created the target."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def find_error(output: str) -> str:
    """Error message of this program in its output."""
    return " ".join(output[output.rfind(_ERROR_PREFIX) :].split())[:_ERROR_CHARACTERS]


def main() -> int:
    """Replace this process by the job's command; EXIT_FAILED if its environment cannot be created."""
    requirements, python, index, arguments = Path(sys.argv[1]), Path(sys.argv[3]), sys.argv[2], sys.argv[4:]
    try:
        if not satisfies(python, requirements):
            python = create_environment(python, requirements, index)
    except (BootstrapError, OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"{_ERROR_PREFIX}: {error}\n")
        return EXIT_FAILED
    return os.execv(python, [str(python), *arguments])  # noqa: S606 (it does not return)


if __name__ == "__main__":
    sys.exit(main())
