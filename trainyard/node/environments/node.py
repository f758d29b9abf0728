"""Second program of a node: the Python environment of play and services, then the play itself.

Standard library only: it runs under the image's own Python, from the bundle. An environment that the stack names
(`node.venv`, a baked image's) is used when it has what the play needs, else one is made from the bundle's pinned lists:
a folder for each state of the lists, so that what runs keeps its own while a newer one is made.
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
sys.path.insert(0, str(BUNDLE))  # it is started as a file, before any package of the bundle is known

from trainyard.node.bootstrap import BASE, Fatal, report, switch  # noqa: E402
from trainyard.node.environments import wheelhouse  # noqa: E402

OLDEST = (3, 11)
ENVIRONMENTS, PLAY_VENV, JOB_VENV = BASE / "venvs", BASE / "venv", BASE / "job-venv"
MARK = "made"  # written last
NEEDED = ("ansible", "ansible_runner", "boto3", "jsonschema", "pydantic", "uv")
INTERRUPTED = Path("/var/lib/dpkg/updates")
TOLD_LINES = 12


def usable(python: Path) -> bool:
    """Whether it has what the play needs. Looked for, not imported: imports take longer than the first tasks."""
    look = "import sys, importlib.util as u; sys.exit(not all(u.find_spec(name) for name in sys.argv[1:]))"
    return python.exists() and subprocess.run([python, "-c", look, *NEEDED], check=False).returncode == 0


def index_options(index: str | None) -> list[str]:
    """pip's options for the stack's package index: a PEP 503 index ends in /simple, anything else is a wheelhouse.

    One in S3 is brought to the node's disk first. Raises Fatal where it is empty.
    """
    if not index:
        return []
    if index.startswith("s3://"):
        region = json.loads((BASE / "node.json").read_text())["region"]
        return ["--no-index", "--find-links", str(wheelhouse.fetch(index, region))]
    return ["--index-url", index] if index.rstrip("/").endswith("simple") else ["--no-index", "--find-links", index]


def make(requirements: Path, install: Callable[[Path], None]) -> tuple[Path, bool]:
    """The environment of this very list, and whether `install` had to make it, in the folder that it is given.

    One that was cut is made again. Raises Fatal with the last words of what failed.
    """
    pinned = requirements.read_bytes() + (BUNDLE / "constraints.txt").read_bytes()
    folder = ENVIRONMENTS / hashlib.sha256(pinned).hexdigest()[:16]
    if (folder / MARK).exists():
        return folder, False
    if folder.exists():
        shutil.rmtree(folder)
    install(folder)
    (folder / MARK).touch()
    return folder, True


def prune() -> None:
    """Remove environments to which no link leads and of which nothing runs any more: torch's takes gigabytes."""
    idle = set(ENVIRONMENTS.iterdir()) - {link.resolve() for link in (PLAY_VENV, JOB_VENV)}
    if not idle:
        return
    loaded = ""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it has ended meanwhile
            loaded += maps.read_text()
    for folder in idle:
        if f"{folder}/" not in loaded:
            shutil.rmtree(folder)


def install_for_play(folder: Path, requirements: Path, index: str | None) -> None:
    """By what the image has: pip."""
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True, check=False).returncode:
        # Debian's and Ubuntu's cloud images come without it.
        apt = ["apt-get", "-o", "DPkg::Lock::Timeout=600", "-o", "Acquire::Retries=3", "-qy"]
        if any(INTERRUPTED.iterdir()):  # by a power cut: apt does nothing before it is mended
            run(["dpkg", "--configure", "-a"])
        run([*apt, "update"])
        run([*apt, "install", "--no-install-recommends", "python3-venv"])
    run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q", "--retries", "10", *index_options(index)]
    run([*pip, "-r", str(requirements), "-c", str(BUNDLE / "constraints.txt")])


def run(command: list[str]) -> None:
    """Run it, its words in the journal as they come. Raises Fatal with the last of them when it fails."""
    last: deque[str] = deque(maxlen=TOLD_LINES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last.append(line.rstrip())
    if process.returncode:
        said = "\n".join(last)
        raise Fatal(f"`{' '.join(command[:4])} ...` ended with {process.returncode}: {said}")


def python_for_play() -> Path:
    """Raises Fatal where the image's Python is too old, or the environment can't be made."""
    if sys.version_info < OLDEST:
        found = ".".join(str(part) for part in sys.version_info[:2])
        raise Fatal(
            f"the image has Python {found}, nodes need 3.11 or newer: use Ubuntu 24.04 or Debian 12 (22.04 has 3.10)"
        )
    node = json.loads((BASE / "manifest.json").read_text())["node"]
    named = Path(node["venv"] or "/nonexistent") / "bin/python"
    if usable(named):
        return named
    requirements = BUNDLE / "trainyard/node/requirements.txt"
    folder, _ = make(requirements, lambda made: install_for_play(made, requirements, node["package_index"]))
    switch(PLAY_VENV, folder)
    return folder / "bin/python"


if __name__ == "__main__":
    try:
        chosen = python_for_play()
    except (Fatal, OSError) as error:
        report(f"the environment of the play: {error}")
        sys.exit(1)
    os.execv(chosen, [str(chosen), "-m", "trainyard.node.playbook"])  # noqa: S606
