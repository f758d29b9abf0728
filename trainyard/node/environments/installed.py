"""Check that an environment matches the bundle's pins: `python -m trainyard.node.environments.installed GPUS`.

Run by that environment's own Python.

Versions are read from what is installed. What imports is tried when the environment is new to this node, or has GPUs to
show: an allocation on each, since without Fabric Manager they are counted and none can be used (error 802).
"""

import hashlib
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version

from trainyard.node.bootstrap import BASE
from trainyard.node.environments.job import REQUIREMENTS

_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)", re.M)


def differing(requirements: str) -> list[str]:
    """A sentence for each pinned package that is absent or of another version; local parts (`+cu132`) aside."""
    found = []
    for name, wanted in _PIN.findall(requirements):
        try:
            there = version(name).split("+")[0]
        except PackageNotFoundError:
            found.append(f"{name} {wanted} is not installed")
            continue
        if there != wanted:
            found.append(f"{name} is {there}, not {wanted}")
    return found


def usable_gpus() -> int:
    """GPUs on which torch can allocate. Raises RuntimeError with CUDA's words where one can't be used."""
    import torch

    return len([torch.zeros(1, device=f"cuda:{index}") for index in range(torch.cuda.device_count())])


def problems(gpus: int) -> list[str]:
    requirements = REQUIREMENTS.read_text()
    if found := differing(requirements):
        return found
    identity = hashlib.sha256(f"{os.path.realpath(sys.prefix)} {requirements}".encode()).hexdigest()
    mark = BASE / "imported" / identity
    if mark.exists() and not gpus:
        return []
    try:
        import s3torchconnector  # noqa: F401
        import torch  # noqa: F401

        seen = usable_gpus() if gpus else 0
    except (ImportError, OSError, RuntimeError) as error:
        return [f"{type(error).__name__}: {error}"]
    if seen < gpus:
        return [f"torch can use {seen} GPUs, the type has {gpus}"]
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return []


if __name__ == "__main__":
    if told := problems(int(sys.argv[1])):
        sys.exit(f"{sys.prefix}: {'; '.join(told)}")
