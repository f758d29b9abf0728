"""The role `cuda` has the versions of the pinned torch: compiler and headers of other versions are incompatible."""

from pathlib import Path

import pytest
import yaml

from tools.locks import read_requirements

ROOT = Path(__file__).parents[3]
ROLE = ROOT / "playbooks/roles/cuda"
WHEELS = {
    requirement.name: str(requirement.specifier).removeprefix("==")
    for requirement in read_requirements(ROOT / "trainer/requirements.txt")
}
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
PACKAGES = dict(package.split("=") for package in DEFAULTS["cuda_packages"])
# Package -> wheel of the same version.
PAIRS = {
    "cuda-minimal-build": "cuda-toolkit",
    "cuda-cudart-dev": "nvidia-cuda-runtime",
    "cuda-nvcc": "nvidia-cuda-nvrtc",  # torch has no wheel with the compiler; both have one version
    "cuda-nvrtc-dev": "nvidia-cuda-nvrtc",
    "libcublas-dev": "nvidia-cublas",
    "libcusolver-dev": "nvidia-cusolver",
    "libcusparse-dev": "nvidia-cusparse",
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_the_version_of_torchs_wheel(name: str) -> None:
    assert PACKAGES[name] == f"{WHEELS[PAIRS[name]]}-1"


def test_cudnn_has_the_version_of_torchs_wheel() -> None:
    pinned = yaml.safe_load((ROLE / "vars/main.yml").read_text())["cuda_pinned_cudnn"]
    assert pinned == WHEELS["nvidia-cudnn-cu13"]
