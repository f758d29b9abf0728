"""Download the wheels of resolved requirements with pip, and build those that have no wheel."""

import hashlib
import shutil
import sys
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from trainyard.errors import InputError, Problem
from trainyard.job_source.environment import NodeEnvironment
from trainyard.job_source.node_packages import normalize
from trainyard.job_source.resolution import (
    REQUIREMENTS,
    UV,
    ToolError,
    hide_credentials,
    pin_name,
    read_index_options,
    run_tool,
)
from trainyard.models.requirements import LockedWheel, RequirementsLock
from trainyard.quantity import quantity

DOWNLOAD_SECONDS = 3600.0
_PIP = (sys.executable, "-m", "pip")
_PURE = "-none-any.whl"


def lock_wheels(
    pins: Sequence[str],
    environment: NodeEnvironment,
    index: Sequence[str],
    source: Path,
    folder: Path,
    report: Callable[[str], None],
) -> RequirementsLock:
    """Fetch the wheels of the requirements `pins` to `folder`/wheels, and return their lock. `folder` is empty.

    `source`: the unpacked source of the job, the base of relative paths, whose requirements may name more indexes.
    `report` receives the progress. Raises ToolError, and InputError for a package without a wheel that cannot be built
    here for the nodes.
    """
    added = read_index_options(source)
    pins_file = folder / "pins.txt"
    lines = [" ".join(pair) for pair in zip(added[::2], added[1::2], strict=True)]
    pins_file.write_text("\n".join([*lines, *pins, ""]))
    options = ["--no-deps", "--no-header", "--format", "pylock.toml", *environment.platform_options(), *index]
    output, _ = run_tool([*UV, "--quiet", "pip", "compile", str(pins_file), *options], source)
    packages = tomllib.loads(output).get("packages", [])
    wheels = {package["name"]: wheel for package in packages if (wheel := _wheel_of(package))}
    report(f"fetching {quantity(len(packages), 'package')} that the nodes do not have{_describe_size(packages)}")
    files = folder / "wheels"
    files.mkdir()
    _fetch(wheels, environment.python, index, source, files)
    for pin in pins:
        if pin_name(pin) not in wheels:
            report(f"building {hide_credentials(pin)}, which has no wheel")
            _build(pin, [*index, *added], source, files)
    locked = sorted((describe_wheel(file) for file in files.iterdir()), key=lambda wheel: wheel.name)
    return RequirementsLock(python=environment.python, wheels=tuple(locked))


def describe_wheel(file: Path) -> LockedWheel:
    """Return the description of a wheel."""
    with zipfile.ZipFile(file) as archive:
        modules = top_level_modules(archive.namelist())
    with file.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    name, version = file.name.split("-")[:2]
    size = file.stat().st_size
    return LockedWheel(
        name=normalize(name), version=version, file=file.name, sha256=sha256, size=size, modules=tuple(modules)
    )


def top_level_modules(names: Sequence[str]) -> list[str]:
    """Return the top-level modules of a wheel with files of these names, sorted."""
    modules = set()
    for name in names:
        parts = PurePosixPath(name).parts
        if len(parts) > 2 and parts[0].endswith(".data") and parts[1] in ("purelib", "platlib"):
            parts = parts[2:]
        module = parts[0].split(".")[0]
        is_importable = len(parts) > 1 or parts[0].endswith((".py", ".so"))
        if module.isidentifier() and is_importable and not parts[0].endswith((".dist-info", ".data")):
            modules.add(module)
    return sorted(modules)


def _wheel_of(package: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return URL or path, and SHA-256, of the wheel of a package of a pylock.toml; None without one for the nodes."""
    for entry in [*package.get("wheels", ()), *([package["archive"]] if "archive" in package else [])]:
        location = str(entry.get("url") or entry.get("path"))
        if urlsplit(location).path.endswith(".whl"):
            return location, entry["hashes"]["sha256"]
    return None


def _describe_size(packages: Sequence[Mapping[str, Any]]) -> str:
    sizes = [wheel.get("size", 0) for package in packages for wheel in package.get("wheels", ())[:1]]
    return f", {sum(sizes) / 1e6:.1f} MB" if any(sizes) else ""


def _fetch(wheels: Mapping[str, tuple[str, str]], python: str, index: Sequence[str], source: Path, files: Path) -> None:
    """Copy local wheels and download the others. `wheels`: name -> URL or path, and SHA-256."""
    lines, tags = [], []
    for name, (location, sha256) in wheels.items():
        parts = urlsplit(location)
        file = PurePosixPath(unquote(parts.path))
        if parts.scheme not in ("http", "https"):
            shutil.copy(source / file, files / file.name)
            continue
        lines.append(f"{name} @ {location} --hash=sha256:{sha256}\n")
        tags.append(file.stem.split("-")[-2:])
    if not lines:
        return
    requirements = files.with_name("downloads.txt")
    requirements.write_text("".join(lines))
    # pip accepts a wheel of another platform only with the tags of that platform.
    options = ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
    for option, position in (("--abi", 0), ("--platform", 1)):
        for tag in sorted({tag for wheel_tags in tags for tag in wheel_tags[position].split(".")}):
            options += [option, tag]
    command = [*_PIP, "download", "-q", "--no-deps", "--dest", str(files), *options, *index]
    run_tool([*command, "-r", str(requirements)], source, DOWNLOAD_SECONDS)


def _build(pin: str, index: Sequence[str], source: Path, folder: Path) -> None:
    """Build a wheel of a package that has none. Raises InputError if it fails or fits this machine only."""
    before = set(folder.iterdir())
    try:
        command = [*_PIP, "wheel", "-q", "--no-deps", "--wheel-dir", str(folder), *index]
        run_tool([*command, pin], source, DOWNLOAD_SECONDS)
    except ToolError as error:
        raise InputError([_not_built(pin, f"it has no wheel, and its build failed here: {error.text}")]) from None
    (built,) = set(folder.iterdir()) - before
    if not built.name.endswith(_PURE):
        reason = f"it has no wheel for the nodes, and {built.name}, built here, fits this machine only"
        raise InputError([_not_built(pin, reason)])


def _not_built(pin: str, reason: str) -> Problem:
    fix = (
        "Add a wheel of it for the nodes to an index (node.package_index), or use an image with the package "
        "(job.container)"
    )
    return Problem(f"{REQUIREMENTS} of the job", hide_credentials(pin), reason.rstrip("."), fix, "package_has_no_wheel")
