"""The wheel: an installed package has the same bundle as the repository, and light dependencies."""

import zipfile
from pathlib import Path

import pytest

from infra.packaging.bundle import pack_bundle
from tests.infra.conftest import ROOT
from tests.wheel import build_wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def requirements(wheel: Path) -> list[str]:
    """Return the requirements in the wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        lines = archive.read(name).decode().splitlines()
    return [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]


def test_bundle_of_the_wheel_is_that_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    assert pack_bundle(tmp_path).sha256 == pack_bundle(ROOT).sha256


@pytest.mark.parametrize(
    "name",
    [
        *("infra/__main__.py", "infra/launcher", "infra/requirements.txt", "rehearsal/report_page.html.j2"),
        *("stacks/Pulumi.local.yaml", "trainyard/config/prices.json", "rehearsal/aws/ec2/reference.yaml"),
    ],
)
def test_wheel_contains_data_file(wheel: Path, name: str) -> None:
    assert name in zipfile.ZipFile(wheel).namelist()


def test_operator_installs_no_torch(wheel: Path) -> None:
    required = requirements(wheel)
    operator = {line.split("==")[0] for line in required if "extra ==" not in line}
    rehearsal = {line.split("==")[0] for line in required if "extra ==" in line}
    assert {"pulumi", "boto3", "typer"} <= operator
    assert "torch" not in operator
    assert {"torch", "moto[server]", "ansible-core"} <= rehearsal
