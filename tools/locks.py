"""Write and check the locks of the Python packages: `python -m tools.locks` and `python -m tools.locks --check`.

A lock, `requirements.txt`, has each package that its inputs, `requirements.in`, require, directly or indirectly, with
one version and the SHA-256 of its files. It is for all platforms and for Python 3.11 and newer. pip and uv refuse a
file with another hash. Packages are installed as wheels only, because a source distribution runs code of build
requirements that no lock has. trainer/wheels has wheels of packages that publish none (`make wheels`).
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
WHEELS = "trainer/wheels"
# Lock -> its inputs. The first lock has all packages; the others have its versions.
LOCKS: Mapping[str, tuple[str, ...]] = {
    "requirements.txt": ("requirements.in",),
    "infra/requirements.txt": ("infra/requirements.in",),
    "trainyard/node/requirements.txt": ("trainyard/node/requirements.in",),
    "trainer/requirements.txt": ("trainer/requirements.in",),
    "rehearsal/requirements.txt": (
        *("infra/requirements.in", "trainyard/node/requirements.in", "trainer/requirements.in"),
        "rehearsal/requirements.in",
    ),
    "tools/audit/requirements.txt": ("tools/audit/requirements.in",),
}
# Locks of environments that share no package with the others.
SEPARATE = frozenset({"tools/audit/requirements.txt"})
_MAIN = next(iter(LOCKS))
_COMPILE = ("-m", "uv", "pip", "compile", "--quiet", "--system-certs", "--universal", "--python-version", "3.11")
_DIGEST = "# SHA-256 of their requirements: "
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def read_requirements(file: Path) -> Iterator[Requirement]:
    """Yield the requirements of a file and of the files that it includes."""
    text = file.read_text().replace("\\\n", " ")
    for line in (line.partition(" #")[0].strip() for line in text.splitlines()):
        if line.startswith("-r "):
            yield from read_requirements(file.parent / line.removeprefix("-r "))
        elif line and not line.startswith(("#", "-")):
            yield Requirement(line.partition(" --hash")[0])


def read_hashes(file: Path) -> dict[str, frozenset[str]]:
    """Return the packages of a lock with the SHA-256 of their files."""
    lines = (line for line in file.read_text().replace("\\\n", " ").splitlines() if line and line[0] not in "#-")
    return {
        canonicalize_name(Requirement(line.partition(" --hash")[0]).name): frozenset(_HASH.findall(line))
        for line in lines
    }


def digest_inputs(inputs: Sequence[Path]) -> str:
    """Return the SHA-256 of the requirements in these files, without comments."""
    lines = sorted({str(requirement) for file in inputs for requirement in read_requirements(file)})
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_lock(lock: str, root: Path = ROOT, upgrade: bool = False) -> None:
    """Resolve the inputs of a lock with the package index, and write it.

    Versions of the lock that still satisfy the inputs remain. `upgrade`: use the newest versions instead.
    """
    wheels = sorted((root / WHEELS).glob("*.whl"))
    options = ["--generate-hashes", "--no-annotate", "--no-header", "--find-links", str(root / WHEELS)]
    for wheel in wheels:  # the index has no wheel of this package
        options += ["--only-binary", canonicalize_name(wheel.name.split("-")[0])]
    if lock != _MAIN and lock not in SEPARATE:
        options += ["--constraints", str(root / _MAIN)]
    with TemporaryDirectory() as folder:
        output = Path(folder) / "lock.txt"
        if (root / lock).exists() and not upgrade:
            lines = (root / lock).read_text().splitlines(keepends=True)
            output.write_text("".join(line for line in lines if not line.startswith("-")))  # without the options
        subprocess.run([sys.executable, *_COMPILE, *options, "-o", output, *LOCKS[lock]], cwd=root, check=True)
        packages = output.read_text()
    (root / lock).write_text(_header(lock, root, packages, wheels) + packages)


def _header(lock: str, root: Path, packages: str, wheels: Sequence[Path]) -> str:
    inputs = LOCKS[lock]
    lines = ["# `make locks` writes this file from the files below: edit those.", *(f"# {name}" for name in inputs)]
    lines += [_DIGEST + digest_inputs([root / name for name in inputs]), "--only-binary :all:"]
    if any(f"\n{wheel.name.split('-')[0]}==" in f"\n{packages}" for wheel in wheels):
        # Relative to the lock, for pip and for uv.
        lines.append(f"--find-links {os.path.relpath(root / WHEELS, (root / lock).parent)}")
    return "\n".join(lines) + "\n"


def find_problems(root: Path = ROOT) -> list[str]:
    """Return messages on locks that do not match their inputs, the other locks, or the wheels of the project."""
    problems = []
    versions = _versions(root / _MAIN)
    for lock, inputs in LOCKS.items():
        locked, hashes = _versions(root / lock), read_hashes(root / lock)
        if _DIGEST + digest_inputs([root / name for name in inputs]) not in (root / lock).read_text().splitlines():
            problems.append(f"{lock} does not match {', '.join(inputs)}")
        problems += [f"{lock} has no hash of {name}" for name in locked if not hashes.get(name)]
        for name, version in locked.items():
            if lock not in SEPARATE and versions.get(name) != version:
                problems.append(f"{lock} has {name} {version}, but {_MAIN} has {versions.get(name, 'none')}")
        for requirement in (each for name in inputs for each in read_requirements(root / name)):
            version = locked.get(canonicalize_name(requirement.name), "")
            if not version or not requirement.specifier.contains(version, prereleases=True):
                problems.append(f"{lock} has {requirement.name} {version or 'not'}, required is {requirement}")
    return [*problems, *_wheel_problems(root)]


def _wheel_problems(root: Path) -> Iterator[str]:
    hashes = read_hashes(root / _MAIN)
    for wheel in sorted((root / WHEELS).glob("*.whl")):
        name = canonicalize_name(wheel.name.split("-")[0])
        if hashlib.sha256(wheel.read_bytes()).hexdigest() not in hashes.get(name, ()):
            yield f"{_MAIN} does not have the hash of {WHEELS}/{wheel.name}"


def _versions(lock: Path) -> dict[str, str]:
    return {
        canonicalize_name(requirement.name): next(iter(requirement.specifier)).version
        for requirement in read_requirements(lock)
    }


def main(arguments: Sequence[str]) -> int:
    """Write the locks, or check them; the exit code. `--upgrade`: use the newest versions of indirect packages."""
    if "--check" not in arguments:
        for lock in LOCKS:
            write_lock(lock, upgrade="--upgrade" in arguments)
        return 0
    problems = find_problems()
    for problem in problems:
        print(f"{problem}: run make locks")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
