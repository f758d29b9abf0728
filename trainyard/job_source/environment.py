"""The Python environment of the nodes for which the requirements of a custom job are resolved."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from trainyard.job_source.node_packages import node_packages, write_metadata
from trainyard.models.requirements import MACHINE

DEFAULT_PYTHON = "3.12"  # of Ubuntu 24.04, the system of the default images
# Part of the name of an image, in the settings or of the AMI -> its Python.
_IMAGE_PYTHONS = {"24.04": "3.12", "deep-learning": "3.12", "noble": "3.12", "debian-12": "3.11"}
# Python of the system -> newest manylinux of its C library.
_MANYLINUX = {"3.11": "manylinux_2_36", "3.12": "manylinux_2_39"}
_DESCRIBE = """
import json, sys
from importlib.metadata import packages_distributions
print(json.dumps(["%d.%d" % sys.version_info[:2], sorted(packages_distributions())]))
"""


def image_python(name: str) -> str | None:
    """Return the Python version of an image by its name in the settings or that of the AMI; None if not known."""
    return next((python for part, python in _IMAGE_PYTHONS.items() if part in name), None)


@dataclass(frozen=True)
class NodeEnvironment:
    """The job's environment on nodes.

    `python`: its version, such as 3.12. `modules`: its top-level modules, without the standard library. `interpreter`:
    its Python where the environment is on this machine too, as in a rehearsal; None: that of the pinned packages.
    """

    python: str
    modules: frozenset[str]
    interpreter: Path | None = None

    @contextmanager
    def uv_target(self) -> Iterator[list[str]]:
        """Yield the options with which uv resolves for this environment."""
        if self.interpreter is not None:
            yield ["--python", str(self.interpreter)]
            return
        with TemporaryDirectory() as folder:
            write_metadata(node_packages(), Path(folder))
            yield ["--target", folder, *self.platform_options()]

    def platform_options(self) -> list[str]:
        """Return the options with which uv selects the wheels of the nodes."""
        if self.interpreter is not None:
            return ["--python", str(self.interpreter)]
        manylinux = _MANYLINUX.get(self.python, _MANYLINUX[DEFAULT_PYTHON])
        options = ["--python", sys.executable, "--python-version", self.python]
        return [*options, "--python-platform", f"{MACHINE}-{manylinux}"]

    def local_interpreter(self) -> Path | None:
        """Return a Python of this machine that can run the job's imports: it has torch, and wheels of nodes fit it."""
        if self.interpreter is not None:
            return self.interpreter
        is_same = (
            sys.platform == "linux"
            and platform.machine() == MACHINE
            and self.python == f"{sys.version_info[0]}.{sys.version_info[1]}"
        )
        return Path(sys.executable) if is_same and _has_node_packages() else None


def _has_node_packages() -> bool:
    from importlib.metadata import PackageNotFoundError, version

    expected = {package.name: package.version for package in node_packages()}
    try:
        return version("torch").partition("+")[0] == expected["torch"]
    except PackageNotFoundError:
        return False


def find_environment(venv: str | None, python: str | None) -> NodeEnvironment | None:
    """Return the environment of the nodes; None if only nodes know it.

    `venv`: node.venv of the settings, which is used if it exists on this machine too. `python`: Python version of the
    image; None: not known.
    """
    if venv is None:
        modules = {module for package in node_packages() for module in package.modules}
        return NodeEnvironment(python or DEFAULT_PYTHON, frozenset(modules))
    interpreter = Path(venv) / "bin/python"
    if not interpreter.exists():
        return None
    try:
        output = subprocess.run([interpreter, "-c", _DESCRIBE], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):  # not the nodes' environment, such as one of another system
        return None
    version, modules = json.loads(output.stdout)
    return NodeEnvironment(version, frozenset(modules), interpreter)


def tool_environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables of uv and pip: both use the index that is configured for one of them."""
    own = {"UV_PYTHON_DOWNLOADS": "never", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    uv_index = variables.get("UV_DEFAULT_INDEX") or variables.get("UV_INDEX_URL")
    if pip_index := variables.get("PIP_INDEX_URL"):
        own["UV_DEFAULT_INDEX"] = uv_index or pip_index
    elif uv_index:
        own["PIP_INDEX_URL"] = uv_index
    return {**variables, **own}
