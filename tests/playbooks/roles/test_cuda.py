"""The role `cuda` on booted machines, with stand-ins for NVIDIA's packages."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import ROOT, Booted, Play, booted
from tests.playbooks.roles.nvidia import CUDA_VARS, CUDA_VERSIONS, CUDNN, UBUNTU, cuda_toolkit, cudnn

pytestmark = pytest.mark.booted

HOME = "/usr/local/cuda-13.2"
ENVIRONMENT = "/etc/trainyard/environment.d/20-cuda.conf"


class Node:
    def __init__(self, machine: Booted, nvidia: Repository) -> None:
        self.machine, self.nvidia, self.sh = machine, nvidia, machine.sh

    def run(self, **variables: Any) -> Play:
        return self.machine.role(
            "cuda",
            cuda_repository=self.nvidia.url,
            cuda_repository_key=self.nvidia.key_url,
            cuda_repository_fingerprint=self.nvidia.fingerprint,
            **variables,
        )


@contextmanager
def machine(folders: pytest.TempPathFactory, system: str = "Debian") -> Iterator[Node]:
    made = folders.mktemp("made")
    with (
        booted(made / "node", NO_SOURCES | (UBUNTU if system == "Ubuntu" else {})) as node,
        repository(made / "distribution", node.network) as own,
        repository(made / "nvidia", node.network) as nvidia,
    ):
        compiler = Package(name="g++", files={"/usr/bin/g++": "#!/bin/sh\n"})
        own.add(compiler, Package(name="ninja-build"), Package(name="python3-dev", version="3.11.2-1"))
        own.be_source_of(node, "distribution")
        nvidia.add(
            *cuda_toolkit("13.2"), *cuda_toolkit("13.2", "~1"), *cuda_toolkit("13.2", ".9"), *cuda_toolkit("13.0")
        )
        nvidia.add(*cudnn("9.26.0.51"), *cudnn("9.30.0.1"))
        yield Node(node, nvidia)


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with machine(tmp_path_factory) as made:
        yield made


@pytest.mark.parametrize("system", ["Debian", "Ubuntu"])
def test_the_compiler_is_pinned_held_and_known_to_the_job(
    tmp_path_factory: pytest.TempPathFactory, system: str
) -> None:
    with machine(tmp_path_factory, system) as node:
        first = node.run()
        assert first.code == 0, first.told
        told = node.sh("dpkg-query -W -f '${Package} ${Version}\\n' '*-13-2'").splitlines()
        assert dict(line.split() for line in told) == {
            **{f"{name}-13-2": version for name, version in CUDA_VERSIONS.items()},
            "libcublas-13-2": CUDA_VERSIONS["libcublas-dev"],  # which the role does not name
        }
        assert {"cuda-minimal-build-13-2", "cuda-nvcc-13-2"} <= set(node.sh("apt-mark showhold").split())
        assert node.sh("readlink -f /usr/local/cuda").strip() == HOME
        assert node.sh(f"cat {ENVIRONMENT}") == f"CUDA_HOME={HOME}\nCUDACXX={HOME}/bin/nvcc\n"
        assert "release 13.2" in node.sh(". /etc/profile.d/trainyard-cuda.sh; nvcc --version")
        assert node.sh("dpkg-query -W -f '${Version}' libcudnn9-dev-cuda-13") == f"{CUDA_VARS['cuda_cudnn_pinned']}-1"
        again = node.run()
        assert (again.code, again.changed) == (0, ()), again.told


def test_a_toolkit_that_an_image_brings_is_kept_and_chosen_among_several(node: Node) -> None:
    told = "#!/bin/sh\necho 'Cuda compilation tools, release {}, V1'\n"
    for release in ("13.0", "13.2"):
        node.machine.put(f"/usr/local/cuda-{release}/bin/nvcc", told.format(release))
        node.sh(f"chmod +x /usr/local/cuda-{release}/bin/nvcc; mkdir /usr/local/cuda-{release}/include")
        node.sh(f"touch /usr/local/cuda-{release}/include/cuda_runtime.h")
    node.sh("ln -s cuda-13.0 /usr/local/cuda")
    node.nvidia.away()  # nothing is asked of it
    kept = node.run()
    assert kept.code == 0, kept.told
    assert node.sh("readlink -f /usr/local/cuda").strip() == HOME
    node.sh("! dpkg-query -W cuda-nvcc-13-2 libcudnn9-cuda-13; dpkg-query -W g++ python3-dev")
    node.nvidia.back()
    assert node.run(cuda_cudnn="9.30.0.1").code == 0
    assert node.sh("dpkg-query -W -f '${Version}' libcudnn9-dev-cuda-13") == "9.30.0.1-1"
    node.sh("! dpkg-query -W cuda-nvcc-13-2")
    assert node.run(cuda_cudnn="9.30.0.1").changed == ()


def test_a_package_that_an_earlier_run_did_not_reach_is_installed(node: Node) -> None:
    assert node.run().code == 0
    node.sh("apt-get purge -qy --allow-change-held-packages libcusparse-dev-13-2")
    assert node.run().code == 0
    node.sh("dpkg-query -W libcusparse-dev-13-2")


@pytest.mark.parametrize(("patch", "then"), [("~1", ""), (".9", ".9")])
def test_an_images_package_is_replaced_where_it_is_older(node: Node, patch: str, then: str) -> None:
    node.nvidia.be_source_of(node.machine, "image")
    names = [f"{package.name}={package.version}" for package in cuda_toolkit("13.2", patch)]
    node.sh(f"apt-get install -qy {' '.join(names)}")
    first = node.run()
    assert first.code == 0, first.told
    assert node.sh("dpkg-query -W -f '${Version}' cuda-nvcc-13-2") == f"13.2.86{then}-1"
    assert node.run().changed == ()


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with machine(tmp_path_factory) as node:
        assert node.run(cuda_cudnn="9.26.0.51").code == 0
        yield node


def test_cudnn_is_the_one_that_was_asked_for(verified: Node) -> None:
    assert verified.sh("dpkg-query -W -f '${Version}' libcudnn9-dev-cuda-13") == "9.26.0.51-1"
    assert "libcudnn9-dev-cuda-13" in verified.sh("apt-mark showhold")
    assert verified.run(cuda_cudnn="9.26.0.51").changed == ()


@pytest.mark.parametrize(
    ("file", "spoil", "message"),
    [
        (f"{HOME}/bin/nvcc", "sed -i s/13.2/13.1/", f"{HOME}/bin/nvcc is of CUDA 13.1, not 13.2"),
        (f"{HOME}/include/cuda_runtime.h", "rm", f"{HOME} has no headers of CUDA's runtime"),
        (CUDNN, "sed -i s/26/25/", "cuDNN's header is of 9.25.0, not 9.26.0.51"),
        ("/usr/bin/g++", "rm", "there is no g++, which nvcc compiles the host's code with"),
        ("/usr/local/cuda", "rm", f"/usr/local/cuda is not {HOME}"),
    ],
)
def test_the_verification_sees_what_changed_since(verified: Node, file: str, spoil: str, message: str) -> None:
    verify = ("sh", f"{ROOT}/playbooks/roles/cuda/files/verify.sh", "13.2", ENVIRONMENT, "9.26.0.51")
    assert verified.machine.machine.run(*verify).returncode == 0
    verified.sh(f"cp -a {file} /root/kept; {spoil} {file}")
    told = verified.machine.machine.run(*verify)
    verified.sh(f"rm -f {file}; mv /root/kept {file}")
    assert (told.returncode, told.stderr) == (1, f"{message}\n")
