"""The locked requirements of a custom job: the launch writes them, nodes install their wheels."""

from typing import Literal

from pydantic import Field

from trainyard.base import StrictModel

MACHINE: Literal["x86_64"] = "x86_64"  # that of all instance types of the catalog


class LockedWheel(StrictModel):
    """A wheel in the staging bucket (trainyard.models.layout.wheel_key)."""

    name: str = Field(description="Normalized name of the package.")
    version: str = Field(description="Version of the package.")
    file: str = Field(pattern=r"^[^/]+\.whl$", description="File name of the wheel.")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the wheel.")
    size: int = Field(gt=0, description="Bytes of the wheel.")
    modules: tuple[str, ...] = Field((), description="Top-level modules of the wheel.")


class RequirementsLock(StrictModel):
    """The packages of a job's requirements that the environment of the nodes does not have."""

    python: str = Field(pattern=r"^3\.\d+$", description="Python version of the nodes for which it was resolved.")
    machine: Literal["x86_64"] = Field(MACHINE, description="Machine of the nodes, as in `platform.machine()`.")
    wheels: tuple[LockedWheel, ...] = Field((), description="Wheels of these packages, sorted by name.")

    def render(self) -> str:
        """Return the lock as a requirements file with hashes."""
        head = f"# In addition to the packages of the nodes' environment, Python {self.python}, {self.machine}.\n"
        return head + "".join(f"{each.name}=={each.version} --hash=sha256:{each.sha256}\n" for each in self.wheels)
