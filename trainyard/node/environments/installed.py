"""Check that an environment matches the bundle's requirements: `python -m trainyard.node.environments.installed GPUS`.

Run by the Python of that environment. It compares the installed versions. It also imports torch if the environment is
new on this node, or if the node has GPUs. It allocates memory on each GPU, because without Fabric Manager GPUs are
listed but not usable (error 802).
"""

import hashlib
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version

from trainyard.node.bootstrap import BASE
from trainyard.node.environments.node import BUNDLE

# Without indirect packages, of which the environment of an image may have other versions.
REQUIREMENTS = BUNDLE / "trainer/requirements.in"

_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", re.M)


def find_differences(requirements: str) -> list[str]:
    """Messages on required packages that are missing or differ in version; local parts (`+cu132`) are ignored."""
    differences = []
    for name, required in _PIN.findall(requirements):
        try:
            installed = version(name).split("+")[0]
        except PackageNotFoundError:
            differences.append(f"{name} {required} is not installed")
            continue
        if installed != required:
            differences.append(f"{name} is {installed}, not {required}")
    return differences


def count_usable_gpus() -> int:
    """Number of GPUs on which torch can allocate memory. Raises RuntimeError if a GPU is not usable."""
    import torch

    return len([torch.zeros(1, device=f"cuda:{index}") for index in range(torch.cuda.device_count())])


def find_problems(gpus: int) -> list[str]:
    """Messages on faults of this environment. `gpus`: number of GPUs of the node."""
    requirements = REQUIREMENTS.read_text()
    if differences := find_differences(requirements):
        return differences
    identity = hashlib.sha256(f"{os.path.realpath(sys.prefix)} {requirements}".encode()).hexdigest()
    mark = BASE / "imported" / identity
    if mark.exists() and not gpus:
        return []
    try:
        import s3torchconnector  # noqa: F401
        import torch  # noqa: F401

        usable = count_usable_gpus() if gpus else 0
    except (ImportError, OSError, RuntimeError) as error:
        return [f"{type(error).__name__}: {error}"]
    if usable < gpus:
        return [f"torch can use {usable} GPUs, but the instance type has {gpus}"]
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return []


if __name__ == "__main__":
    if problems := find_problems(int(sys.argv[1])):
        sys.exit(f"{sys.prefix}: {'; '.join(problems)}")
