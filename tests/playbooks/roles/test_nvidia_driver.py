"""The role `nvidia_driver` on booted machines, with stand-ins for the packages and the GPUs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import ROOT, BootedMachine, PlaybookResult, boot_machine
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
    """A machine with eight GPUs and the repositories of its distribution and of NVIDIA."""

    def __init__(self, machine: BootedMachine, distribution: Repository, nvidia: Repository) -> None:
        self.machine, self.distribution, self.nvidia = machine, distribution, nvidia
        self.run_script = machine.run_script

    def run_role(self, **variables: Any) -> PlaybookResult:
        return self.machine.run_role(
            "nvidia_driver",
            nvidia_driver_gpus=8,
            nvidia_driver_gpu_model="A100",
            nvidia_driver_repository=self.nvidia.url,
            nvidia_driver_repository_key=self.nvidia.key_url,
            nvidia_driver_repository_fingerprint=self.nvidia.fingerprint,
            **variables,
        )

    def install_as_image(self, driver: str) -> None:
        """Install and load a driver as an image does."""
        self.nvidia.add_source_to(self.machine, "image")
        names = [f"nvidia-kernel-open-dkms={driver}-1", f"nvidia-driver-cuda={driver}-1", f"libcuda1={driver}-1"]
        self.run_script(f"apt-get install -qy linux-headers-{KERNEL} {' '.join(names)}; modprobe nvidia nvidia-uvm")

    def package_version(self, package: str) -> str:
        return self.run_script(f"dpkg-query -W -f '${{Version}}' {package}")


@contextmanager
def machine(folders: pytest.TempPathFactory, system: str = "Debian") -> Iterator[Node]:
    files = NO_SOURCES | MODULES | GPUS | (UBUNTU if system == "Ubuntu" else {})
    folder = folders.mktemp("driver")
    with (
        boot_machine(folder / "node", files) as node,
        repository(folder / "distribution", node.network) as own_packages,
        repository(folder / "nvidia", node.network) as nvidia,
    ):
        own_packages.add(*distribution(KERNEL))
        own_packages.add_source_to(node, "distribution")
        driver = ubuntu_driver if system == "Ubuntu" else debian_driver
        for version in (OLD, PINNED, NEWER):
            nvidia.add(*driver(version))
        yield Node(node, own_packages, nvidia)


@pytest.fixture
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with machine(tmp_path_factory) as node:
        yield node


@pytest.mark.parametrize(
    ("system", "names"),
    [
        ("Debian", {"nvidia-kernel-open-dkms", "nvidia-driver-cuda", "libcuda1", "nvidia-fabricmanager"}),
        ("Ubuntu", {"nvidia-dkms-580-open", "nvidia-utils-580", "libnvidia-compute-580", "nvidia-fabricmanager"}),
    ],
)
def test_the_pinned_version_is_installed_completely_and_held(
    tmp_path_factory: pytest.TempPathFactory, system: str, names: set[str]
) -> None:
    with machine(tmp_path_factory, system) as node:
        variables = {"nvidia_driver_fabric_manager": True, "nvidia_driver_clocks": "1215,1410"}
        first = node.run_role(**variables)
        assert first.exit_code == 0, first.output
        assert {node.package_version(name).split("-")[0] for name in names} == {PINNED}
        assert names <= set(node.run_script("apt-mark showhold").split())
        node.run_script("systemctl is-active nvidia-fabricmanager nvidia-persistenced")
        node.run_script("systemctl is-enabled nvidia-fabricmanager nvidia-persistenced")
        assert node.run_script("cat /run/gpu/persistence /run/gpu/clocks") == "Enabled\n1215, 1410\n"
        assert node.run_script("cat /run/gpu/fabric") == "Completed\n"  # the verification waits for this state
        second = node.run_role(**variables)
        assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


def test_proprietary_modules_are_installed_if_the_gpus_need_them(node: Node) -> None:
    assert node.run_role(nvidia_driver_kernel_modules="proprietary").exit_code == 0
    assert node.package_version("nvidia-kernel-dkms") == f"{PINNED}-1"


@pytest.mark.parametrize("driver", [NEWER, PINNED])
def test_a_recent_driver_is_kept(node: Node, driver: str) -> None:
    node.install_as_image(driver)
    node.nvidia.stop()  # the role must not contact it
    result = node.run_role()
    assert result.exit_code == 0, result.output
    assert node.package_version("nvidia-driver-cuda") == f"{driver}-1"
    assert "nvidia-driver-cuda" in node.run_script("apt-mark showhold")


def test_a_requested_version_replaces_a_newer_version(node: Node) -> None:
    node.install_as_image(NEWER)
    result = node.run_role(nvidia_driver_version=PINNED)
    assert result.exit_code == 0, result.output
    assert node.package_version("nvidia-driver-cuda") == f"{PINNED}-1"
    assert f"the kernel has driver {NEWER} loaded, and {PINNED} is installed" in node.run_script(f"cat {REBOOT}")


def test_a_requested_version_that_cannot_be_installed_is_reported(node: Node) -> None:
    node.install_as_image(NEWER)
    result = node.run_role(nvidia_driver_version=OLD)
    assert (result.exit_code, f"nvidia_driver_version is {OLD}, but torch's CUDA needs" in result.failure) == (
        2,
        True,
    ), result.output
    node.machine.write_file("/usr/bin/nvidia-uninstall", "")
    node.run_script("chmod +x /usr/bin/nvidia-uninstall")
    result = node.run_role(nvidia_driver_version=PINNED)
    assert result.exit_code == 2
    assert f"driver is {NEWER}, and the stack requests {PINNED} (nvidia_driver_version)" in result.failure
    assert node.package_version("nvidia-driver-cuda") == f"{NEWER}-1"


def test_fabric_manager_is_installed_at_the_version_of_a_kept_driver(node: Node) -> None:
    node.install_as_image(NEWER)
    assert node.run_role(nvidia_driver_fabric_manager=True).exit_code == 0
    assert node.package_version("nvidia-fabricmanager") == f"{NEWER}-1"


def test_nvlink_5_installs_the_subnet_manager(node: Node) -> None:
    node.distribution.add(Package(name="infiniband-diags"), Package(name="libibumad3"))
    node.nvidia.add(Package(name="nvlsm", depends=["libibumad3"]))
    variables = {"nvidia_driver_fabric_manager": True, "nvidia_driver_nvlink5": True}
    first = node.run_role(**variables)
    assert first.exit_code == 0, first.output
    assert node.package_version("nvlsm") == "1.0-1"
    assert (
        node.run_script("cat /etc/modules-load.d/trainyard-nvlink5.conf; ls -d /sys/module/ib_umad").split()[0]
        == "ib_umad"
    )
    second = node.run_role(**variables)
    assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


def test_a_fabric_manager_of_a_different_version_is_refused(node: Node) -> None:
    node.install_as_image(NEWER)
    node.run_script(f"apt-get install -qy nvidia-fabricmanager={PINNED}-1")
    result = node.run_role(nvidia_driver_fabric_manager=True)
    assert result.exit_code == 2
    assert f"Fabric Manager is {PINNED}, and the driver is {NEWER}" in result.failure


def test_an_old_driver_is_replaced_at_a_reboot(node: Node) -> None:
    node.install_as_image(OLD)
    result = node.run_role()
    assert result.exit_code == 0, result.output
    assert node.package_version("nvidia-driver-cuda") == f"{PINNED}-1"
    reason = f"nvidia_driver: the kernel has driver {OLD} loaded, and {PINNED} is installed\n"
    assert node.run_script(f"cat {REBOOT}") == reason
    assert node.run_role().exit_code == 0  # without a reboot the role requests it again
    node.machine.reboot()
    after_reboot = node.run_role()
    assert after_reboot.exit_code == 0, after_reboot.output
    node.run_script(f"! ls {REBOOT} /var/lib/trainyard/nvidia_driver-reboot")
    assert node.run_script("cat /sys/module/nvidia/version") == f"{PINNED}\n"


def test_a_reboot_without_effect_is_reported_and_not_requested_again(node: Node) -> None:
    node.install_as_image(OLD)
    assert node.run_role().exit_code == 0
    node.machine.reboot()
    node.run_script(
        f"mkdir /sys/module/nvidia; echo {OLD} > /sys/module/nvidia/version"
    )  # for example from an initramfs
    result = node.run_role()
    assert result.exit_code == 2
    assert "was rebooted for its NVIDIA driver" in result.failure
    assert "the reboot did not help" in result.failure
    node.run_script(f"! ls {REBOOT}")


def test_nouveau_is_unloaded_by_a_reboot(node: Node) -> None:
    node.run_script("mkdir /sys/module/nouveau")
    assert node.run_role().exit_code == 0
    assert node.run_script(f"cat {REBOOT}").startswith("nvidia_driver: the nouveau driver is loaded")
    assert "blacklist nouveau" in node.run_script("cat /etc/modprobe.d/trainyard-nouveau.conf")


def test_an_outdated_driver_of_the_run_file_stays_unchanged(node: Node) -> None:
    node.install_as_image(OLD)
    node.machine.write_file("/usr/bin/nvidia-uninstall", "")
    node.run_script("chmod +x /usr/bin/nvidia-uninstall")
    result = node.run_role()
    assert result.exit_code == 2
    assert f"The image's NVIDIA driver is {OLD}" in result.failure
    assert node.package_version("nvidia-driver-cuda") == f"{OLD}-1"


def test_a_version_missing_from_the_repository_is_reported(node: Node) -> None:
    result = node.run_role(nvidia_driver_version="580.999.01")
    assert result.exit_code == 2
    assert f"NVIDIA driver 580.999.01 cannot be installed on kernel {KERNEL}" in result.failure
    assert "change nvidia_driver_version in the stack" in result.failure


def test_refused_application_clocks_are_reported(node: Node) -> None:
    node.install_as_image(PINNED)
    result = node.run_role(nvidia_driver_clocks="9999,9999")
    assert result.exit_code == 2
    assert "nvidia-smi refuses the application clocks 9999,9999" in result.failure


def test_clocks_are_locked_if_the_driver_has_no_application_clocks(node: Node) -> None:
    node.install_as_image(NEWER)
    first = node.run_role(nvidia_driver_clocks="1215,1410")
    assert first.exit_code == 0, first.output
    assert node.run_script("cat /run/gpu/memory /run/gpu/graphics") == "1215\n1410\n"
    assert "note: " not in first.output
    second = node.run_role(nvidia_driver_clocks="1215,1410")
    assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


def test_a_refused_clock_lock_is_noted_and_does_not_fail_the_role(node: Node) -> None:
    node.install_as_image(NEWER)
    node.machine.write_file("/etc/gpus-without-memory-lock", "")
    assert node.run_role(nvidia_driver_clocks="1215,1410").exit_code == 0
    result = node.run_role(nvidia_driver_clocks="1215,1410")
    assert (result.exit_code, result.changed_tasks) == (0, ()), result.output
    assert "nvidia-smi -lmc 1215,1215 is refused: Setting locked memory clocks is not supported" in result.output
    assert (
        f"note: clocks are 1593,1410 MHz now (memory,graphics), not 1215,1410. Driver {NEWER} has no" in result.output
    )


def test_a_missing_gpu_fails_the_role(node: Node) -> None:
    node.install_as_image(PINNED)
    node.run_script("sed -i 1d /etc/gpus")
    result = node.run_role()
    assert result.exit_code == 2
    assert "nvidia-smi lists 7 GPUs, and the instance type has 8" in result.failure


def test_without_a_persistence_daemon_persistence_mode_is_set(node: Node) -> None:
    node.install_as_image(PINNED)
    node.run_script("! systemctl cat nvidia-persistenced")
    assert node.run_role().exit_code == 0
    assert node.run_script("cat /run/gpu/persistence") == "Enabled\n"


def test_the_persistence_daemon_of_an_image_is_used(node: Node) -> None:
    node.install_as_image(PINNED)
    unit = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
    node.machine.write_file("/etc/systemd/system/nvidia-persistenced.service", unit)
    node.run_script("systemctl daemon-reload")
    assert node.run_role().exit_code == 0
    assert "sleep" in node.run_script(
        "systemctl show -P ExecStart nvidia-persistenced; systemctl is-active nvidia-persistenced"
    )
    node.run_script("! dpkg-query -W nvidia-persistenced")


@pytest.mark.parametrize(
    ("change", "message"),
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
def test_the_verification_reports_each_problem(configured_node: Node, change: str, message: str) -> None:
    script = f"{ROOT}/playbooks/roles/nvidia_driver/files/verify.sh"
    verify = ("sh", script, "8", "A100", "580.65.06", "fabric", "1215,1410")
    assert configured_node.machine.machine.run_command(*verify).returncode == 0
    configured_node.run_script(
        f"cp -a /run/gpu /etc/gpus /usr/bin/nv-fabricmanager /usr/bin/nvidia-smi /root; {change}"
    )
    result = configured_node.machine.machine.run_command(*verify)
    configured_node.run_script("cd /root; cp -a gpu /run; cp -a gpus /etc; cp -a nv-fabricmanager nvidia-smi /usr/bin")
    configured_node.run_script("systemctl start nvidia-fabricmanager")
    assert (result.returncode, result.stderr) == (1, f"{message}\n")


def test_a_service_that_does_not_start_is_reported_with_its_log(configured_node: Node) -> None:
    drop_in = "/run/systemd/system/nvidia-fabricmanager.service.d/fails.conf"
    failing = "[Service]\nExecStartPre=/bin/sh -c 'echo no NVSwitch found; exit 1'\n"
    configured_node.machine.write_file(drop_in, failing)
    configured_node.run_script("systemctl daemon-reload; systemctl stop nvidia-fabricmanager")
    result = configured_node.run_role(nvidia_driver_fabric_manager=True, nvidia_driver_clocks="1215,1410")
    configured_node.run_script(f"rm {drop_in}; systemctl daemon-reload; systemctl reset-failed")
    configured_node.run_script("systemctl start nvidia-fabricmanager")
    assert result.exit_code == 2
    assert "nvidia-fabricmanager.service does not start: " in result.failure
    assert "no NVSwitch found" in result.failure


@pytest.fixture(scope="module")
def configured_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with machine(tmp_path_factory) as node:
        assert node.run_role(nvidia_driver_fabric_manager=True, nvidia_driver_clocks="1215,1410").exit_code == 0
        yield node


def test_the_component_is_enabled_in_the_sources_of_the_distribution_only(node: Node) -> None:
    sources = {
        "/etc/apt/sources.list": "deb http://mirror/debian bookworm main\ndeb http://other/ tool main\n",
        "/etc/apt/sources.list.d/debian.sources": "Types: deb\nSuites: bookworm bookworm-updates\nComponents: main\n",
    }
    for path, text in sources.items():
        node.machine.write_file(path, text)
    script = f"sh {ROOT}/playbooks/roles/nvidia_driver/files/enable-component.sh contrib"
    assert node.run_script(script).splitlines() == ["changed"] * 2
    assert node.run_script("cat /etc/apt/sources.list") == (
        "deb http://mirror/debian bookworm main contrib\ndeb http://other/ tool main\n"
    )
    assert "Components: main contrib\n" in node.run_script("cat /etc/apt/sources.list.d/debian.sources")
    assert node.run_script(script) == ""
