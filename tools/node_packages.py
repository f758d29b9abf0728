"""Generate trainyard/job_source/node_packages.json: `python -m tools.node_packages`.

It describes the packages of the nodes' environment that are installed in the environment of `make setup`.
"""

import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

from trainyard.job_source.node_packages import NodePackage, normalize

ROOT = Path(__file__).parents[1]
# Oldest and newest Python of the images, and both machines: a requirement of any of them is followed.
_PLATFORMS = [
    {"python_version": version, "python_full_version": f"{version}.0", "platform_machine": machine}
    | {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    for version in ("3.11", "3.12", "3.13")
    for machine in ("x86_64", "aarch64")
]


def describe_packages(root: Path = ROOT) -> tuple[NodePackage, ...]:
    """Return the packages that trainer/requirements.in and what these require install on Linux, sorted by name."""
    lines = (line.partition("#")[0].strip() for line in (root / "trainer/requirements.in").read_text().splitlines())
    modules = _modules()
    packages: dict[str, NodePackage] = {}
    pending = [Requirement(line) for line in lines if line]
    seen: set[str] = set()
    while pending:
        requirement = pending.pop()
        if str(requirement) in seen:
            continue
        seen.add(str(requirement))
        try:
            installed = distribution(requirement.name)
        except PackageNotFoundError:  # of another platform
            continue
        name = normalize(requirement.name)
        required = [Requirement(line) for line in installed.requires or ()]
        pending += [each for each in required if _applies(each, requirement.extras)]
        packages[name] = NodePackage(
            name=name,
            version=installed.version.partition("+")[0],
            requires=tuple(str(each) for each in required),
            extras=tuple(installed.metadata.get_all("Provides-Extra") or ()),
            modules=tuple(sorted(modules.get(name, ()))),
        )
    return tuple(packages[name] for name in sorted(packages))


def render_packages(packages: tuple[NodePackage, ...]) -> str:
    """Return the text of node_packages.json."""
    return "[\n" + ",\n".join(package.model_dump_json(exclude_defaults=True) for package in packages) + "\n]\n"


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    if requirement.marker is None:
        return True
    marker = requirement.marker
    return any(marker.evaluate({**platform, "extra": extra}) for platform in _PLATFORMS for extra in (extras or {""}))


def _modules() -> Mapping[str, set[str]]:
    modules: dict[str, set[str]] = {}
    for module, names in packages_distributions().items():
        for name in names:
            if not module.startswith("_") and module.isidentifier():
                modules.setdefault(normalize(name), set()).add(module)
    return modules


def main() -> None:
    """Print the packages, one a line."""
    sys.stdout.write(render_packages(describe_packages()))


if __name__ == "__main__":
    main()
