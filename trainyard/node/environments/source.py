"""Install the requirements of a custom job: `source.py REQUIREMENTS LOCK INDEX PYTHON LINK`.

LINK points to the environment of PYTHON if that satisfies REQUIREMENTS. Otherwise this program creates an environment
for these requirements. Packages of PYTHON's environment that satisfy them are linked and not copied, because torch
takes gigabytes. The others are the wheels of LOCK, the URI of a RequirementsLock, which the launch has resolved.
Without a lock, or with one for another Python, uv resolves them with the stack's index: as the user of the job, because
the build of a package runs its code. This program runs before the job as root, without the job's secrets.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

BUNDLE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(BUNDLE))  # this file runs as a script, in the folder of the user's sources

from trainyard.models.layout import split_s3_uri, wheel_key  # noqa: E402
from trainyard.models.requirements import RequirementsLock  # noqa: E402
from trainyard.node.bootstrap import BASE, BootstrapError, retry, s3_get  # noqa: E402
from trainyard.node.environments.node import index_options, run_command  # noqa: E402
from trainyard.node.environments.wheelhouse import download  # noqa: E402
from trainyard.node.job_user import JobUser, find_job_user  # noqa: E402

REQUIREMENTS = "requirements.txt"
EXIT_FAILED = 78  # EX_CONFIG of sysexits.h: torchrun does not use it
_ERROR_PREFIX = f"{REQUIREMENTS} of the job"
MODEL_ERROR_PREFIX = "model of the job"  # of trainyard.node.environments.model, which has the same exit code
_UNTRUSTED = re.compile(r"peer certificate|CERTIFICATE_VERIFY_FAILED")
_TRUST = "To trust the CA of a proxy that intercepts TLS, set node.ca_certificate"
_MESSAGE_LINES, _MESSAGE_CHARACTERS = 4, 800
_DETAILS_CHARACTERS = 6000
UV = (sys.executable, "-m", "uv", "--no-progress", "--system-certs")
INSTALL = f"uv pip install -r {REQUIREMENTS}"
# Errors of uv that another attempt does not fix. Others, such as an index that does not respond, may be temporary.
_PERMANENT = re.compile(
    r"No solution found|Couldn't parse|[Ii]nvalid|Failed to build|status client error \(40[134]|peer certificate"
)


def satisfies(python: Path, requirements: Path) -> bool:
    """Whether the environment of `python` satisfies the requirements: uv would install nothing. Works offline."""
    # As the user of the job: for the metadata of a package in the job's sources uv runs the code of its build.
    command = [*_as_user(find_job_user()), *UV, "pip", "install", "--offline", "--no-index", "--dry-run"]
    command += ["--python", str(python), "-r"]
    result = subprocess.run([*command, str(requirements)], capture_output=True, text=True, check=False)
    return result.returncode == 0 and "Would make no changes" in result.stderr


def read_lock(uri: str, python: Path) -> RequirementsLock | None:
    """The lock of the job's requirements; None if it is not for the Python of this node."""
    lock = RequirementsLock.model_validate_json(retry(uri, partial(s3_get, uri, *_location())))
    command = [str(python), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    version = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if (version, platform.machine()) == (lock.python, lock.machine):
        return lock
    sys.stdout.write(f"the requirements are locked for Python {lock.python}, and this node has {version}: resolving\n")
    return None


def install_lock(python: Path, lock: RequirementsLock, uri: str) -> Path:
    """Python of an environment that extends that of `python` by the wheels of the lock with this URI.

    Raises BootstrapError if a wheel cannot be downloaded or differs from the lock.
    """
    if not lock.wheels:
        return python
    wheels, bucket = [], split_s3_uri(uri)[0]
    for wheel in lock.wheels:
        file = BASE / "job/wheels" / wheel.sha256 / wheel.file
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            source = f"s3://{bucket}/{wheel_key(wheel.sha256, wheel.file)}"
            retry(source, partial(download, source, _location()[0], file))
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if digest != wheel.sha256:
            file.unlink()
            raise BootstrapError(f"{wheel.file} has SHA-256 {digest}, but the lock has {wheel.sha256}")
        wheels.append(str(file))
    return create_environment(python, lock.model_dump_json(), ["--no-index", "--no-deps", *wheels])


def install_requirements(python: Path, requirements: Path, index: str | None) -> Path:
    """Python of an environment that extends that of `python` by the requirements, resolved on this node."""
    if satisfies(python, requirements):
        return python
    options = [*index_options(index), "-r", str(requirements)]
    return create_environment(python, requirements.read_text(), options)


def create_environment(python: Path, content: str, options: Sequence[str]) -> Path:
    """Python of an environment that extends that of `python` by the packages of uv's `options`.

    It is created once for this `content`, atomically. The user of the job installs the packages, because builds, and
    the compilation to byte code in an environment with .pth files, run their code. Raises BootstrapError with the last
    lines of uv's output.
    """
    user = find_job_user()
    packages = _packages(python)
    identity = hashlib.sha256(f"{packages.resolve()}\n{content}".encode()).hexdigest()[:16]
    folder = BASE / "job" / f"environment-{identity}"
    if not folder.exists():
        work = folder.with_name(f"{folder.name}.{os.getpid()}")
        try:
            run_command([*UV, "venv", "--relocatable", "--python", str(python), str(work)])
            created = work / "bin/python"
            shutil.copytree(packages, _packages(created), symlinks=True, copy_function=_link, dirs_exist_ok=True)
            # uv replaces a package as new files, so it does not write to the linked files of another environment.
            install = ["--link-mode", "copy", "--compile-bytecode", *options]
            _give_folders(work, user)
            run_command([*_as_user(user), *UV, "pip", "install", "--python", str(created), *install], INSTALL)
            _take_files(work)
            work.rename(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder / "bin/python"


def _location() -> tuple[str, str | None]:
    """Region and account of the staging bucket."""
    node = json.loads((BASE / "node.json").read_text())
    return node["region"], node.get("account")


def _packages(python: Path) -> Path:
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    return Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())


def _link(source: str, target: str) -> None:
    """Link a file; copy it if the two are on different disks, or if `uv venv` has created the target."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _as_user(user: JobUser | None) -> list[str]:
    """Command that runs another as the user, who has no home directory."""
    if user is None:
        return []
    ids = [f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", "--no-new-privs"]
    return ["setpriv", *ids, "env", "HOME=/tmp", "UV_NO_CACHE=true"]


def _give_folders(environment: Path, user: JobUser | None) -> None:
    """Let the user change an environment, but not the files that other environments also have."""
    if user is not None:
        for folder in (environment, *(path for path in environment.rglob("*") if path.is_dir())):
            os.lchown(folder, user.uid, user.gid)


def _take_files(environment: Path) -> None:
    """Make this user the owner of all files of an environment, so that a job cannot change them."""
    for path in (environment, *environment.rglob("*")):
        if path.lstat().st_uid != os.getuid():
            os.lchown(path, os.getuid(), os.getgid())


def find_error(output: str) -> tuple[str, str, bool]:
    """Error message of this program, or of the download of the model, in their output.

    Returns the message in one line, the details that it does not contain, such as the output of a failed build, and
    whether another attempt fails in the same way.
    """
    start = max(map(output.rfind, (_ERROR_PREFIX, MODEL_ERROR_PREFIX)))
    error = output[start:].partition("\nhint: ")[0].strip()
    command, separator, reason = error.partition("\nerror: ")  # uv prints its progress before
    lines = [line.strip().removeprefix("cause: ") for line in reason.splitlines() if line.strip()]
    details = reason[-_DETAILS_CHARACTERS:] if len(lines) > _MESSAGE_LINES else ""
    if separator:
        error = f"{command.partition(' ended with ')[0]} failed: {': '.join(lines[:_MESSAGE_LINES])}"
        error += f". {_TRUST}" if _UNTRUSTED.search(reason) else ""
    return " ".join(error.split())[:_MESSAGE_CHARACTERS], details, bool(separator and _PERMANENT.search(reason))


def main() -> int:
    """Point the link to the job's environment; EXIT_FAILED if that cannot be created."""
    requirements, uri, index = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    python, link = Path(sys.argv[4]), Path(sys.argv[5])
    os.chdir(requirements.parent)  # it may name files of the job's sources
    try:
        lock = read_lock(uri, python) if uri else None
        if lock is not None:
            python = install_lock(python, lock, uri)
        else:
            python = install_requirements(python, requirements, index)
    except (BootstrapError, OSError, ValueError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"{_ERROR_PREFIX}: {error}\n")
        return EXIT_FAILED
    link.unlink(missing_ok=True)
    link.symlink_to(python.parents[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
