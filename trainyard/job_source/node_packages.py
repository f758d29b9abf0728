"""The packages of the job's Python environment on nodes, from `node_packages.json`.

`python -m tools.node_packages > trainyard/job_source/node_packages.json` writes the file from the packages that
trainer/requirements.txt locks, so that an operator's machine without torch knows them.
"""

import re
from functools import cache
from pathlib import Path

from pydantic import Field, TypeAdapter

from trainyard.base import StrictModel


class NodePackage(StrictModel):
    """One installed package."""

    name: str = Field(description="Normalized name.")
    version: str = Field(description="Version without its local part.")
    requires: tuple[str, ...] = Field((), description="Its requirements (Requires-Dist).")
    extras: tuple[str, ...] = Field((), description="Its extras (Provides-Extra).")
    modules: tuple[str, ...] = Field((), description="Top-level modules that it installs.")


@cache
def node_packages() -> tuple[NodePackage, ...]:
    """Return the packages of `node_packages.json`."""
    content = (Path(__file__).parent / "node_packages.json").read_bytes()
    return TypeAdapter(tuple[NodePackage, ...]).validate_json(content)


def normalize(name: str) -> str:
    """Return the normalized name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def write_metadata(packages: tuple[NodePackage, ...], folder: Path) -> None:
    """Write the metadata of the packages to `folder`, so that uv resolves as if they were installed there."""
    for package in packages:
        metadata = folder / f"{package.name.replace('-', '_')}-{package.version}.dist-info"
        metadata.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {package.name}", f"Version: {package.version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in package.requires]
        lines += [f"Provides-Extra: {extra}" for extra in package.extras]
        (metadata / "METADATA").write_text("\n".join(lines) + "\n")
        (metadata / "RECORD").touch()
