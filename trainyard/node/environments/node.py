"""Second program of a node: create the Python environment of playbook and services, then start the playbook.

Standard library only: it runs with the Python of the image, from the bundle. The environment that the stack names
(`node.venv`, that of a baked image) is used if it has all packages of the playbook. Otherwise an environment is created
from the bundle's lock, in a folder per version of the lock, so that running processes keep theirs. A package whose
SHA-256 the lock does not have is refused, also one of the stack's own package index.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

BUNDLE = Path(__file__).resolve().parents[3]
LOCK = BUNDLE / "trainyard/node/requirements.txt"
HASH_OPTIONS = (
    "--require-hashes",
    "--only-binary",
    ":all:",
)  # of pip and uv: no build runs, and each wheel is verified
sys.path.insert(0, str(BUNDLE))  # this file runs as a script, so the bundle is not in the path

from trainyard import package_index  # noqa: E402
from trainyard.log import configure_logging  # noqa: E402
from trainyard.node.bootstrap import BASE, BootstrapError, replace_link, report_failure  # noqa: E402
from trainyard.node.environments import certificates, wheelhouse  # noqa: E402

MINIMUM_PYTHON = (3, 11)
ENVIRONMENTS, NODE_VENV, JOB_VENV = BASE / "venvs", BASE / "venv", BASE / "job-venv"
MARK = "complete"  # written last
REQUIRED_MODULES = ("ansible", "ansible_runner", "boto3", "jsonschema", "pydantic", "uv")
INTERRUPTED_DPKG = Path("/var/lib/dpkg/updates")
ERROR_LINES = 12


def is_usable(python: Path) -> bool:
    """Whether the environment of `python` has all modules of the playbook. Not imported: that takes seconds."""
    script = "import sys, importlib.util as u; sys.exit(not all(u.find_spec(name) for name in sys.argv[1:]))"
    return python.exists() and subprocess.run([python, "-c", script, *REQUIRED_MODULES], check=False).returncode == 0


def index_options(index: str | None) -> list[str]:
    """Options of pip for the stack's package index. A wheelhouse in S3 is downloaded first.

    Raises BootstrapError if that is empty.
    """
    if index and index.startswith("s3://"):
        region = json.loads((BASE / "node.json").read_text())["region"]
        return ["--no-index", "--find-links", str(wheelhouse.fetch(index, region))]
    return package_index.index_options(index)


def create_environment(lock: Path, install: Callable[[Path], None]) -> tuple[Path, bool]:
    """Folder of the environment of a lock, and whether it was created now by `install`.

    An incomplete environment is created again. Raises BootstrapError with the last lines of the failed command.
    """
    folder = ENVIRONMENTS / hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    if (folder / MARK).exists():
        return folder, False
    if folder.exists():
        shutil.rmtree(folder)
    install(folder)
    (folder / MARK).touch()
    return folder, True


def remove_unused() -> None:
    """Remove environments that no link and no running process uses: one with torch takes gigabytes."""
    unlinked = set(ENVIRONMENTS.iterdir()) - {link.resolve() for link in (NODE_VENV, JOB_VENV)}
    if not unlinked:
        return
    loaded = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # the process has exited
            loaded += maps.read_text(errors="replace")  # names of files may have any bytes
    for folder in unlinked:
        if f"{folder}/" not in loaded:
            shutil.rmtree(folder)


def install_node_environment(folder: Path, index: str | None) -> None:
    """Create the environment in `folder` with the image's own tools: venv and pip."""
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True, check=False).returncode:
        # Cloud images of Debian and Ubuntu do not have it.
        apt = ["apt-get", "-o", "DPkg::Lock::Timeout=600", "-o", "Acquire::Retries=3", "-qy"]
        if any(INTERRUPTED_DPKG.iterdir()):  # apt refuses to work after a power loss until dpkg is repaired
            run_command(["dpkg", "--configure", "-a"])
        run_command([*apt, "update"])
        run_command([*apt, "install", "--no-install-recommends", "python3-venv"])
    run_command([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q", "--retries", "10", *index_options(index)]
    run_command([*pip, *HASH_OPTIONS, "-r", str(LOCK)])


def run_command(command: list[str], name: str | None = None) -> None:
    """Run a command and pass its output on. Raises BootstrapError with the last lines of the output if it fails.

    `name`: the command in the error message, by default its start.
    """
    last: deque[str] = deque(maxlen=ERROR_LINES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last.append(line.rstrip())
    if process.returncode:
        output = "\n".join(last)
        name = name or f"{' '.join(command[:4])} ..."
        raise BootstrapError(f"`{name}` ended with {process.returncode}: {output}")


def prepare_python() -> Path:
    """Python interpreter of the playbook, in an environment that is created if needed.

    Raises BootstrapError if the image's Python is too old, or if the environment cannot be created.
    """
    if sys.version_info < MINIMUM_PYTHON:
        version = ".".join(str(part) for part in sys.version_info[:2])
        raise BootstrapError(
            f"the image has Python {version}, nodes need 3.11 or newer: use Ubuntu 24.04 or Debian 12 (22.04 has 3.10)"
        )
    node = json.loads((BASE / "manifest.json").read_text())["node"]
    configured = Path(node["venv"] or "/nonexistent") / "bin/python"
    if is_usable(configured):
        return configured
    folder, _ = create_environment(LOCK, lambda folder: install_node_environment(folder, node["package_index"]))
    replace_link(NODE_VENV, folder)
    return folder / "bin/python"


if __name__ == "__main__":
    configure_logging(node=json.loads((BASE / "node.json").read_text())["instance"])
    try:
        certificate = json.loads((BASE / "manifest.json").read_text())["node"].get("ca_certificate")
        os.environ.update(certificates.install_certificate(certificate))
        python = prepare_python()
    except (BootstrapError, OSError) as error:
        report_failure(f"the Python environment of the playbook: {error}")
        sys.exit(1)
    os.execv(python, [str(python), "-m", "trainyard.node.playbook"])  # noqa: S606
