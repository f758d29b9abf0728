"""The role `cuda` has the versions of the pinned torch: a compiler and headers of other ones do not fit."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
ROLE = ROOT / "playbooks/roles/cuda"
WHEELS = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
PACKAGES = dict(package.split("=") for package in DEFAULTS["cuda_packages"])
# The wheel of the same version as a package.
PAIRS = {
    "cuda-minimal-build": "cuda-toolkit",
    "cuda-cudart-dev": "nvidia-cuda-runtime",
    "cuda-nvcc": "nvidia-cuda-nvrtc",  # no wheel of torch's has the compiler; both are of one
    "cuda-nvrtc-dev": "nvidia-cuda-nvrtc",
    "libcublas-dev": "nvidia-cublas",
    "libcusolver-dev": "nvidia-cusolver",
    "libcusparse-dev": "nvidia-cusparse",
}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_is_of_the_version_of_torchs_wheel(name: str) -> None:
    assert PACKAGES[name] == f"{WHEELS[PAIRS[name]].split()[0]}-1"


def test_cudnn_is_of_the_version_of_torchs_wheel() -> None:
    pinned = yaml.safe_load((ROLE / "vars/main.yml").read_text())["cuda_cudnn_pinned"]
    assert pinned == WHEELS["nvidia-cudnn-cu13"].split()[0]
