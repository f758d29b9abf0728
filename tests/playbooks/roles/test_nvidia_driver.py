"""The role `nvidia_driver` on booted machines, with stand-ins for the packages and the GPUs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import ROOT, Booted, Play, booted
from tests.playbooks.roles.nvidia import (
    MODULES,
    UBUNTU,
    debian_driver,
    distribution,
    ubuntu_driver,
)

pytestmark = pytest.mark.booted

KERNEL = os.uname().release
PINNED, NEWER, OLD = "580.173.02", "595.91.07", "570.172.08"
GPUS = {"/etc/gpus": "NVIDIA A100-SXM4-40GB\n" * 8}
REBOOT = "/run/trainyard/reboot-required"


class Node:
    """A machine with eight GPUs, a distribution's repository and NVIDIA's."""

    def __init__(self, machine: Booted, distribution: Repository, nvidia: Repository) -> None:
        self.machine, self.distribution, self.nvidia = machine, distribution, nvidia
        self.sh = machine.sh

    def run(self, **variables: Any) -> Play:
        return self.machine.role(
            "nvidia_driver",
            nvidia_driver_gpus=8,
            nvidia_driver_model="A100",
            nvidia_driver_repository=self.nvidia.url,
            nvidia_driver_repository_key=self.nvidia.key_url,
            nvidia_driver_repository_fingerprint=self.nvidia.fingerprint,
            **variables,
        )

    def has(self, driver: str) -> None:
        """Bring a driver, as an image does: installed and loaded."""
        self.nvidia.be_source_of(self.machine, "image")
        names = [f"nvidia-kernel-open-dkms={driver}-1", f"nvidia-driver-cuda={driver}-1", f"libcuda1={driver}-1"]
        self.sh(f"apt-get install -qy linux-headers-{KERNEL} {' '.join(names)}; modprobe nvidia nvidia-uvm")

    def version(self, package: str) -> str:
        return self.sh(f"dpkg-query -W -f '${{Version}}' {package}")

    def reboot(self) -> None:
        self.machine.reboot()


@contextmanager
def machine(folders: pytest.TempPathFactory, system: str = "Debian") -> Iterator[Node]:
    files = NO_SOURCES | MODULES | GPUS | (UBUNTU if system == "Ubuntu" else {})
    made = folders.mktemp("made")
    with (
        booted(made / "node", files) as node,
        repository(made / "distribution", node.network) as own,
        repository(made / "nvidia", node.network) as nvidia,
    ):
        own.add(*distribution(KERNEL))
        own.be_source_of(node, "distribution")
        driver = ubuntu_driver if system == "Ubuntu" else debian_driver
        for version in (OLD, PINNED, NEWER):
            nvidia.add(*driver(version))
        yield Node(node, own, nvidia)


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with machine(tmp_path_factory) as made:
        yield made


@pytest.mark.parametrize(
    ("system", "names"),
    [
        ("Debian", {"nvidia-kernel-open-dkms", "nvidia-driver-cuda", "libcuda1", "nvidia-fabricmanager"}),
        ("Ubuntu", {"nvidia-dkms-580-open", "nvidia-utils-580", "libnvidia-compute-580", "nvidia-fabricmanager"}),
    ],
)
def test_a_bare_machine_gets_the_pinned_version_whole_and_held(
    tmp_path_factory: pytest.TempPathFactory, system: str, names: set[str]
) -> None:
    with machine(tmp_path_factory, system) as node:
        wanted = {"nvidia_driver_fabric_manager": True, "nvidia_driver_clocks": "1215,1410"}
        first = node.run(**wanted)
        assert first.code == 0, first.told
        assert {node.version(name).split("-")[0] for name in names} == {PINNED}
        assert names <= set(node.sh("apt-mark showhold").split())
        node.sh("systemctl is-active nvidia-fabricmanager nvidia-persistenced")
        node.sh("systemctl is-enabled nvidia-fabricmanager nvidia-persistenced")
        assert node.sh("cat /run/gpu/persistence /run/gpu/clocks") == "Enabled\n1215, 1410\n"
        assert node.sh("cat /run/gpu/fabric") == "Completed\n"  # it waited for that
        again = node.run(**wanted)
        assert (again.code, again.changed) == (0, ()), again.told


def test_proprietary_modules_are_installed_where_the_gpus_need_them(node: Node) -> None:
    assert node.run(nvidia_driver_kernel_modules="proprietary").code == 0
    assert node.version("nvidia-kernel-dkms") == f"{PINNED}-1"


@pytest.mark.parametrize("driver", [NEWER, PINNED])
def test_a_driver_that_is_new_enough_is_kept(node: Node, driver: str) -> None:
    node.has(driver)
    node.nvidia.away()  # nothing is asked of it
    told = node.run()
    assert told.code == 0, told.told
    assert node.version("nvidia-driver-cuda") == f"{driver}-1"
    assert "nvidia-driver-cuda" in node.sh("apt-mark showhold")


def test_a_version_that_is_asked_for_takes_the_place_of_a_newer_one(node: Node) -> None:
    node.has(NEWER)
    asked = node.run(nvidia_driver_version=PINNED)
    assert asked.code == 0, asked.told
    assert node.version("nvidia-driver-cuda") == f"{PINNED}-1"
    assert f"the kernel has driver {NEWER} loaded, and {PINNED} is installed" in node.sh(f"cat {REBOOT}")


def test_a_version_that_is_asked_for_and_can_not_be_had_is_named(node: Node) -> None:
    node.has(NEWER)
    told = node.run(nvidia_driver_version=OLD)
    assert (told.code, f"nvidia_driver_version = {OLD}, and torch's CUDA needs" in told.failure) == (2, True), told.told
    node.machine.put("/usr/bin/nvidia-uninstall", "")
    node.sh("chmod +x /usr/bin/nvidia-uninstall")
    told = node.run(nvidia_driver_version=PINNED)
    assert told.code == 2
    assert f"driver is {NEWER}, and the stack asks for {PINNED} (nvidia_driver_version)" in told.failure
    assert node.version("nvidia-driver-cuda") == f"{NEWER}-1"


def test_fabric_manager_comes_at_the_version_of_the_driver_that_is_kept(node: Node) -> None:
    node.has(NEWER)
    assert node.run(nvidia_driver_fabric_manager=True).code == 0
    assert node.version("nvidia-fabricmanager") == f"{NEWER}-1"


def test_nvlink_5_gets_its_subnet_manager(node: Node) -> None:
    node.distribution.add(Package(name="infiniband-diags"), Package(name="libibumad3"))
    node.nvidia.add(Package(name="nvlsm", depends=["libibumad3"]))
    wanted = {"nvidia_driver_fabric_manager": True, "nvidia_driver_nvlink5": True}
    first = node.run(**wanted)
    assert first.code == 0, first.told
    assert node.version("nvlsm") == "1.0-1"
    assert node.sh("cat /etc/modules-load.d/trainyard-nvlink5.conf; ls -d /sys/module/ib_umad").split()[0] == "ib_umad"
    again = node.run(**wanted)
    assert (again.code, again.changed) == (0, ()), again.told


def test_a_fabric_manager_of_another_version_is_refused(node: Node) -> None:
    node.has(NEWER)
    node.sh(f"apt-get install -qy nvidia-fabricmanager={PINNED}-1")
    told = node.run(nvidia_driver_fabric_manager=True)
    assert told.code == 2
    assert f"Fabric Manager is {PINNED}, and the driver is {NEWER}" in told.failure


def test_an_old_driver_is_replaced_at_a_reboot(node: Node) -> None:
    node.has(OLD)
    asked = node.run()
    assert asked.code == 0, asked.told
    assert node.version("nvidia-driver-cuda") == f"{PINNED}-1"
    reason = f"nvidia_driver: the kernel has driver {OLD} loaded, and {PINNED} is installed\n"
    assert node.sh(f"cat {REBOOT}") == reason
    assert node.run().code == 0  # nobody has rebooted yet: it asks again
    node.reboot()
    done = node.run()
    assert done.code == 0, done.told
    node.sh(f"! ls {REBOOT} /var/lib/trainyard/nvidia_driver-reboot")
    assert node.sh("cat /sys/module/nvidia/version") == f"{PINNED}\n"


def test_a_reboot_that_did_not_help_is_said_and_not_asked_for_again(node: Node) -> None:
    node.has(OLD)
    assert node.run().code == 0
    node.reboot()
    node.sh(f"mkdir /sys/module/nvidia; echo {OLD} > /sys/module/nvidia/version")  # from an initramfs, say
    told = node.run()
    assert told.code == 2
    assert "was rebooted for its NVIDIA driver" in told.failure
    assert "that did not help" in told.failure
    node.sh(f"! ls {REBOOT}")


def test_nouveau_leaves_at_a_reboot(node: Node) -> None:
    node.sh("mkdir /sys/module/nouveau")
    assert node.run().code == 0
    assert node.sh(f"cat {REBOOT}").startswith("nvidia_driver: nouveau drives the GPUs")
    assert "blacklist nouveau" in node.sh("cat /etc/modprobe.d/trainyard-nouveau.conf")


def test_a_driver_of_the_run_file_that_is_too_old_is_not_touched(node: Node) -> None:
    node.has(OLD)
    node.machine.put("/usr/bin/nvidia-uninstall", "")
    node.sh("chmod +x /usr/bin/nvidia-uninstall")
    told = node.run()
    assert told.code == 2
    assert f"The image's NVIDIA driver is {OLD}" in told.failure
    assert node.version("nvidia-driver-cuda") == f"{OLD}-1"


def test_a_version_that_the_repository_lacks_is_named(node: Node) -> None:
    told = node.run(nvidia_driver_version="580.999.01")
    assert told.code == 2
    assert f"NVIDIA driver 580.999.01 can't be installed on kernel {KERNEL}" in told.failure
    assert "must be changed in the stack" in told.failure


def test_clocks_that_the_gpus_refuse_are_named(node: Node) -> None:
    node.has(PINNED)
    told = node.run(nvidia_driver_clocks="9999,9999")
    assert told.code == 2
    assert "nvidia-smi refuses the application clocks 9999,9999" in told.failure


def test_clocks_are_locked_where_the_driver_has_no_application_clocks(node: Node) -> None:
    node.has(NEWER)
    first = node.run(nvidia_driver_clocks="1215,1410")
    assert first.code == 0, first.told
    assert node.sh("cat /run/gpu/memory /run/gpu/graphics") == "1215\n1410\n"
    assert "note: " not in first.told
    again = node.run(nvidia_driver_clocks="1215,1410")
    assert (again.code, again.changed) == (0, ()), again.told


def test_clocks_that_a_newer_driver_does_not_lock_are_noted_and_stop_no_node(node: Node) -> None:
    node.has(NEWER)
    node.machine.put("/etc/gpus-own-memory-clock", "")
    assert node.run(nvidia_driver_clocks="1215,1410").code == 0
    told = node.run(nvidia_driver_clocks="1215,1410")
    assert (told.code, told.changed) == (0, ()), told.told
    assert "nvidia-smi -lmc 1215,1215 is refused: Setting locked memory clocks is not supported" in told.told
    assert f"note: clocks are 1593,1410 MHz now (memory,graphics), not 1215,1410. Driver {NEWER} has no" in told.told


def test_a_gpu_that_is_missing_fails_the_role(node: Node) -> None:
    node.has(PINNED)
    node.sh("sed -i 1d /etc/gpus")
    told = node.run()
    assert told.code == 2
    assert "nvidia-smi sees 7 GPUs, and the instance type has 8" in told.failure


def test_without_a_persistence_daemon_the_driver_itself_keeps_the_gpus(node: Node) -> None:
    node.has(PINNED)
    node.sh("! systemctl cat nvidia-persistenced")
    assert node.run().code == 0
    assert node.sh("cat /run/gpu/persistence") == "Enabled\n"


def test_images_own_persistence_daemon_is_used(node: Node) -> None:
    node.has(PINNED)
    own = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    node.machine.put("/etc/systemd/system/nvidia-persistenced.service", own)
    node.sh("systemctl daemon-reload")
    assert node.run().code == 0
    assert "sleep" in node.sh(
        "systemctl show -P ExecStart nvidia-persistenced; systemctl is-active nvidia-persistenced"
    )
    node.sh("! dpkg-query -W nvidia-persistenced")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ("sed -i s/A100/A10G/ /etc/gpus", "GPUs are NVIDIA A10G-SXM4-40GB, and the instance type has A100"),
        (
            f"sed -i s/{PINNED}/580.1/ /usr/bin/nvidia-smi",
            "nvidia-smi fails: Failed to initialize NVML: Driver/library version mismatch",
        ),
        ("systemctl stop nvidia-fabricmanager", "nvidia-fabricmanager.service is inactive"),
        ("sed -i s/580/581/ /usr/bin/nv-fabricmanager", f"Fabric Manager is 581.173.02, and the driver is {PINNED}"),
        ("echo Disabled > /run/gpu/persistence", "persistence mode is off on 8 GPUs"),
        ("echo '1, 2' > /run/gpu/clocks", "application clocks are 1,2, not 1215,1410"),
    ],
)
def test_the_verification_itself_sees_what_changed_since(verified: Node, spoil: str, message: str) -> None:
    script = f"{ROOT}/playbooks/roles/nvidia_driver/files/verify.sh"
    verify = ("sh", script, "8", "A100", "580.65.06", "fabric", "1215,1410")
    assert verified.machine.machine.run(*verify).returncode == 0
    verified.sh(f"cp -a /run/gpu /etc/gpus /usr/bin/nv-fabricmanager /usr/bin/nvidia-smi /root; {spoil}")
    told = verified.machine.machine.run(*verify)
    verified.sh("cd /root; cp -a gpu /run; cp -a gpus /etc; cp -a nv-fabricmanager nvidia-smi /usr/bin")
    verified.sh("systemctl start nvidia-fabricmanager")
    assert (told.returncode, told.stderr) == (1, f"{message}\n")


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with machine(tmp_path_factory) as node:
        assert node.run(nvidia_driver_fabric_manager=True, nvidia_driver_clocks="1215,1410").code == 0
        yield node


def test_the_distributions_own_sources_bring_its_further_component(node: Node) -> None:
    written = {
        "/etc/apt/sources.list": "deb http://mirror/debian bookworm main\ndeb http://other/ tool main\n",
        "/etc/apt/sources.list.d/debian.sources": "Types: deb\nSuites: bookworm bookworm-updates\nComponents: main\n",
    }
    for path, text in written.items():
        node.machine.put(path, text)
    script = f"sh {ROOT}/playbooks/roles/nvidia_driver/files/component.sh contrib"
    assert node.sh(script).splitlines() == ["changed"] * 2
    assert node.sh("cat /etc/apt/sources.list") == (
        "deb http://mirror/debian bookworm main contrib\ndeb http://other/ tool main\n"
    )
    assert "Components: main contrib\n" in node.sh("cat /etc/apt/sources.list.d/debian.sources")
    assert node.sh(script) == ""
