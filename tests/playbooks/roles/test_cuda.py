"""The role `cuda` on booted machines, with stand-ins for NVIDIA's packages."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import ROOT, BootedMachine, PlaybookResult, boot_machine
from tests.playbooks.roles.nvidia import CUDA_VARS, CUDA_VERSIONS, CUDNN, UBUNTU, cuda_toolkit, cudnn

pytestmark = pytest.mark.booted

HOME = "/usr/local/cuda-13.2"
ENVIRONMENT = "/etc/trainyard/environment.d/20-cuda.conf"


class Node:
    def __init__(self, machine: BootedMachine, nvidia: Repository) -> None:
        self.machine, self.nvidia, self.run_script = machine, nvidia, machine.run_script

    def run_role(self, **variables: Any) -> PlaybookResult:
        return self.machine.run_role(
            "cuda",
            cuda_repository=self.nvidia.url,
            cuda_repository_key=self.nvidia.key_url,
            cuda_repository_fingerprint=self.nvidia.fingerprint,
            **variables,
        )


@contextmanager
def machine(folders: pytest.TempPathFactory, system: str = "Debian") -> Iterator[Node]:
    folder = folders.mktemp("made")
    with (
        boot_machine(folder / "node", NO_SOURCES | (UBUNTU if system == "Ubuntu" else {})) as node,
        repository(folder / "distribution", node.network) as distribution,
        repository(folder / "nvidia", node.network) as nvidia,
    ):
        compiler = Package(name="g++", files={"/usr/bin/g++": "#!/bin/sh\n"})
        distribution.add(compiler, Package(name="ninja-build"), Package(name="python3-dev", version="3.11.2-1"))
        distribution.add_source_to(node, "distribution")
        nvidia.add(
            *cuda_toolkit("13.2"), *cuda_toolkit("13.2", "~1"), *cuda_toolkit("13.2", ".9"), *cuda_toolkit("13.0")
        )
        nvidia.add(*cudnn("9.26.0.51"), *cudnn("9.30.0.1"))
        yield Node(node, nvidia)


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with machine(tmp_path_factory) as node:
        yield node


@pytest.mark.parametrize("system", ["Debian", "Ubuntu"])
def test_the_compiler_is_pinned_held_and_available_to_the_job(
    tmp_path_factory: pytest.TempPathFactory, system: str
) -> None:
    with machine(tmp_path_factory, system) as node:
        first = node.run_role()
        assert first.exit_code == 0, first.output
        packages = node.run_script("dpkg-query -W -f '${Package} ${Version}\\n' '*-13-2'").splitlines()
        assert dict(line.split() for line in packages) == {
            **{f"{name}-13-2": version for name, version in CUDA_VERSIONS.items()},
            "libcublas-13-2": CUDA_VERSIONS["libcublas-dev"],  # a dependency that the role does not list
        }
        assert {"cuda-minimal-build-13-2", "cuda-nvcc-13-2"} <= set(node.run_script("apt-mark showhold").split())
        assert node.run_script("readlink -f /usr/local/cuda").strip() == HOME
        assert node.run_script(f"cat {ENVIRONMENT}") == f"CUDA_HOME={HOME}\nCUDACXX={HOME}/bin/nvcc\n"
        assert "release 13.2" in node.run_script(". /etc/profile.d/trainyard-cuda.sh; nvcc --version")
        assert (
            node.run_script("dpkg-query -W -f '${Version}' libcudnn9-dev-cuda-13")
            == f"{CUDA_VARS['cuda_pinned_cudnn']}-1"
        )
        second = node.run_role()
        assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


def test_the_toolkit_of_an_image_is_kept_and_selected_among_several(node: Node) -> None:
    nvcc = "#!/bin/sh\necho 'Cuda compilation tools, release {}, V1'\n"
    for release in ("13.0", "13.2"):
        node.machine.write_file(f"/usr/local/cuda-{release}/bin/nvcc", nvcc.format(release))
        node.run_script(f"chmod +x /usr/local/cuda-{release}/bin/nvcc; mkdir /usr/local/cuda-{release}/include")
        node.run_script(f"touch /usr/local/cuda-{release}/include/cuda_runtime.h")
    node.run_script("ln -s cuda-13.0 /usr/local/cuda")
    node.nvidia.stop()  # the role must not contact it
    kept = node.run_role()
    assert kept.exit_code == 0, kept.output
    assert node.run_script("readlink -f /usr/local/cuda").strip() == HOME
    node.run_script("! dpkg-query -W cuda-nvcc-13-2 libcudnn9-cuda-13; dpkg-query -W g++ python3-dev")
    node.nvidia.start()
    assert node.run_role(cuda_cudnn="9.30.0.1").exit_code == 0
    assert node.run_script("dpkg-query -W -f '${Version}' libcudnn9-dev-cuda-13") == "9.30.0.1-1"
    node.run_script("! dpkg-query -W cuda-nvcc-13-2")
    assert node.run_role(cuda_cudnn="9.30.0.1").changed_tasks == ()


def test_a_package_missing_after_an_interrupted_run_is_installed(node: Node) -> None:
    assert node.run_role().exit_code == 0
    node.run_script("apt-get purge -qy --allow-change-held-packages libcusparse-dev-13-2")
    assert node.run_role().exit_code == 0
    node.run_script("dpkg-query -W libcusparse-dev-13-2")


@pytest.mark.parametrize(("patch", "then"), [("~1", ""), (".9", ".9")])
def test_only_older_packages_of_an_image_are_replaced(node: Node, patch: str, then: str) -> None:
    node.nvidia.add_source_to(node.machine, "image")
    names = [f"{package.name}={package.version}" for package in cuda_toolkit("13.2", patch)]
    node.run_script(f"apt-get install -qy {' '.join(names)}")
    first = node.run_role()
    assert first.exit_code == 0, first.output
    assert node.run_script("dpkg-query -W -f '${Version}' cuda-nvcc-13-2") == f"13.2.86{then}-1"
    assert node.run_role().changed_tasks == ()


@pytest.fixture(scope="module")
def configured_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with machine(tmp_path_factory) as node:
        assert node.run_role(cuda_cudnn="9.26.0.51").exit_code == 0
        yield node


def test_the_requested_cudnn_version_is_installed_and_held(configured_node: Node) -> None:
    assert configured_node.run_script("dpkg-query -W -f '${Version}' libcudnn9-dev-cuda-13") == "9.26.0.51-1"
    assert "libcudnn9-dev-cuda-13" in configured_node.run_script("apt-mark showhold")
    assert configured_node.run_role(cuda_cudnn="9.26.0.51").changed_tasks == ()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        (f"{HOME}/bin/nvcc", "sed -i s/13.2/13.1/", f"{HOME}/bin/nvcc is of CUDA 13.1, not 13.2"),
        (f"{HOME}/include/cuda_runtime.h", "rm", f"{HOME} has no headers of the CUDA runtime"),
        (CUDNN, "sed -i s/26/25/", "the cuDNN header is of version 9.25.0, not 9.26.0.51"),
        ("/usr/bin/g++", "rm", "g++, which nvcc needs for host code, is not installed"),
        ("/usr/local/cuda", "rm", f"/usr/local/cuda is not {HOME}"),
    ],
)
def test_the_verification_reports_a_changed_file(configured_node: Node, file: str, change: str, message: str) -> None:
    verify = ("sh", f"{ROOT}/playbooks/roles/cuda/files/verify.sh", "13.2", ENVIRONMENT, "9.26.0.51")
    assert configured_node.machine.machine.run_command(*verify).returncode == 0
    configured_node.run_script(f"cp -a {file} /root/original; {change} {file}")
    result = configured_node.machine.machine.run_command(*verify)
    configured_node.run_script(f"rm -f {file}; mv /root/original {file}")
    assert (result.returncode, result.stderr) == (1, f"{message}\n")
