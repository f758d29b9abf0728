"""The role `efa` on a booted machine, with an installer that the test creates and signs."""

import hashlib
import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.apt_repository import NO_SOURCES, Repository, repository
from tests.machines import ROOT, BootedMachine, PlaybookResult, boot_machine
from tests.playbooks.roles.amazon import efa_installer

FILES = ROOT / "playbooks/roles/efa/files"
FOLDER = "/opt/amazon"


def load_verification() -> ModuleType:
    """Import the role's verify.py."""
    spec = importlib.util.spec_from_file_location("efa_verify", FILES / "verify.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_device_with_two_fabrics_counts_once() -> None:
    efa = "provider: efa\n    fabric: efa\n    domain: rdmap0s6-rdm\n"
    efa_direct = "provider: efa\n    fabric: efa-direct\n    domain: rdmap0s6-rdm\n    domain: rdmap1s0-dgrm\n"
    assert load_verification().parse_devices(efa + efa_direct) == ["rdmap0s6", "rdmap1s0"]


def test_devices_on_the_pci_bus_are_counted_by_amazons_ids(tmp_path: Path) -> None:
    for name, vendor, device in [("a", "0x1d0f", "0xefa2"), ("b", "0x1d0f", "0xec20"), ("c", "0x10de", "0xefa0")]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "device").write_text(device + "\n")
    assert load_verification().count_pci_devices(tmp_path) == 1


def test_libraries_of_torch_do_not_count_as_missing() -> None:
    ldd = "\tlibcudart.so.12 => not found\n\tlibfabric.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n"
    assert load_verification().missing_libraries(ldd) == ["libfabric.so.1"]


def test_fewer_huge_pages_than_requested_are_reported() -> None:
    problem = load_verification().huge_pages_problem
    assert problem(8, "HugePages_Total:       8\n") == ""
    assert problem(8, "HugePages_Total:       7\n") == "7 huge pages are reserved, not 8 (base_huge_pages)"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    with boot_machine(tmp_path_factory.mktemp("efa"), NO_SOURCES) as machine:
        yield machine


@pytest.fixture(scope="module")
def download(node: BootedMachine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with repository(tmp_path_factory.mktemp("download"), node.network) as download:
        for version in ("1.51.0", "1.37.0"):
            download.sign(efa_installer(download.folder, version))
        yield download


@pytest.fixture(autouse=True)
def clean_machine(request: pytest.FixtureRequest) -> None:
    """Remove everything that the role has created on the machine."""
    if request.node.get_closest_marker("booted"):
        node: BootedMachine = request.getfixturevalue("node")
        node.run_script(
            f"rm -rf {FOLDER} /var/log/installer-runs /var/cache/trainyard /etc/ld.so.conf.d/60-trainyard*; ldconfig;"
            "rm -rf /etc/efa-used /run/trainyard; echo 4 > /etc/efa-devices"
        )


def variables(download: Repository, version: str = "1.51.0") -> dict[str, Any]:
    return {
        "efa_interfaces": 4,
        "efa_version": version,
        "efa_installer_url": f"{download.url}/aws-efa-installer-{version}.tar.gz",
        "efa_signing_key_url": download.key_url,
        "efa_signing_key_fingerprint": download.fingerprint,
        "efa_device_timeout_seconds": 0,
    }


def installer_runs(node: BootedMachine) -> list[str]:
    """Return the options of each run of the installer."""
    return node.run_script("cat /var/log/installer-runs || true").splitlines()


def failure(result: PlaybookResult) -> str:
    """Return the output of the failed task."""
    assert result.exit_code == 2, result.output
    return result.failure


@pytest.mark.booted
def test_a_signed_installer_is_run_once(node: BootedMachine, download: Repository) -> None:
    first = node.run_role("efa", **variables(download))
    assert first.exit_code == 0, first.output
    assert installer_runs(node) == ["--yes --skip-limit-conf --no-verify --mpi=openmpi4"]
    assert node.run_script("ldconfig -p | grep -c 'libnccl-net-ofi.so .*=> /opt/amazon/ofi-nccl/lib/'") == "1\n"
    assert node.run_script("ls -A /var/cache/trainyard") == ""
    second = node.run_role("efa", **variables(download))
    assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


@pytest.mark.booted
def test_an_installer_signed_by_another_key_is_not_run(node: BootedMachine, download: Repository) -> None:
    wrong = "0" * 40
    result = node.run_role("efa", **variables(download) | {"efa_signing_key_fingerprint": wrong})
    assert f"the installer is signed by {download.fingerprint}, and only {wrong} is trusted" in failure(result)
    assert installer_runs(node) == []


@pytest.mark.booted
def test_an_installer_modified_after_the_signature_is_not_run(node: BootedMachine, download: Repository) -> None:
    original = download.folder / "aws-efa-installer-1.51.0.tar.gz"
    changed = download.folder / "changed.tar.gz"
    changed.write_bytes(original.read_bytes() + b"\0")
    (download.folder / "changed.tar.gz.sig").write_bytes(Path(f"{original}.sig").read_bytes())
    result = node.run_role("efa", **variables(download) | {"efa_installer_url": f"{download.url}/changed.tar.gz"})
    assert "the signature is not valid: " in failure(result)
    assert "BAD signature" in failure(result)
    assert installer_runs(node) == []
    # The refused files are not used by the next run.
    assert node.run_role("efa", **variables(download)).exit_code == 0


@pytest.mark.booted
def test_a_checksum_replaces_the_signature(node: BootedMachine, download: Repository) -> None:
    checksum = hashlib.sha256((download.folder / "aws-efa-installer-1.51.0.tar.gz").read_bytes()).hexdigest()
    without_key = variables(download) | {"efa_signing_key_url": f"{download.url}/none"}
    result = node.run_role("efa", **without_key, efa_installer_sha256="0" * 64)
    assert f"the SHA-256 is {checksum}, not {'0' * 64}: set efa_installer_sha256" in failure(result)
    assert installer_runs(node) == []
    assert node.run_role("efa", **without_key, efa_installer_sha256=checksum.upper()).exit_code == 0
    assert len(installer_runs(node)) == 1


@pytest.mark.booted
def test_an_installed_version_is_kept_unless_it_is_outdated(node: BootedMachine, download: Repository) -> None:
    old = variables(download, "1.37.0") | {"efa_minimum_version": "1.30.0"}
    assert node.run_role("efa", **old).exit_code == 0
    assert node.run_role("efa", **variables(download) | {"efa_minimum_version": "1.37.0"}).changed_tasks == ()
    assert len(installer_runs(node)) == 1
    assert "efa : Verify and run the EFA installer" in node.run_role("efa", **variables(download)).changed_tasks
    assert "1.51.0" in node.run_script("head -n 1 /opt/amazon/efa_installed_packages")


@pytest.mark.booted
def test_a_different_number_of_devices_than_the_instance_type_has_is_reported(
    node: BootedMachine, download: Repository
) -> None:
    node.write_file("/etc/efa-devices", "3")
    result = node.run_role("efa", **variables(download))
    assert "libfabric lists 3 EFA devices (rdmap1s0, rdmap2s0, rdmap3s0), the instance type has 4" in failure(result)
    node.write_file("/etc/efa-devices", "5")
    assert "libfabric lists 5 EFA devices" in failure(node.run_role("efa", **variables(download)))


@pytest.mark.booted
def test_the_role_waits_for_late_devices(node: BootedMachine, download: Repository) -> None:
    node.write_file("/etc/efa-devices", "0\n3\n4\n")
    assert node.run_role("efa", **variables(download) | {"efa_device_timeout_seconds": 60}).exit_code == 0


@pytest.mark.booted
def test_a_plugin_that_cannot_be_loaded_is_reported(node: BootedMachine, download: Repository) -> None:
    assert node.run_role("efa", **variables(download)).exit_code == 0
    node.run_script("truncate -s 4096 /opt/amazon/ofi-nccl/lib/libnccl-net.so")
    assert "libnccl-net-ofi.so cannot be loaded: " in failure(node.run_role("efa", **variables(download)))
    node.run_script("rm /opt/amazon/ofi-nccl/lib/*ofi.so; ldconfig")
    assert "the loader does not find libnccl-net-ofi.so" in failure(node.run_role("efa", **variables(download)))


@pytest.mark.booted
def test_dropped_connections_are_retried(node: BootedMachine, download: Repository) -> None:
    download.drop_connections(2)
    result = node.run_role("efa", **variables(download))
    assert result.exit_code == 0, result.output
    assert download.has_dropped_all()


@pytest.mark.booted
def test_a_driver_in_use_requests_a_reboot_before_the_verification(node: BootedMachine, download: Repository) -> None:
    node.run_script("echo 0 > /etc/efa-devices; touch /etc/efa-used")
    assert node.run_role("efa", **variables(download)).exit_code == 0
    assert "could not unload the older driver" in node.run_script("cat /run/trainyard/reboot-required")
    node.run_script("rm -r /run/trainyard")  # as a boot does
    assert "libfabric lists 0 EFA devices" in failure(node.run_role("efa", **variables(download)))


@pytest.mark.booted
def test_an_interrupted_installation_is_repeated(node: BootedMachine, download: Repository) -> None:
    """Interrupted while the installer runs: archive and a part of the installed files exist."""
    assert node.run_role("efa", **variables(download) | {"efa_installer_options": ["--yes"]}).exit_code == 0
    node.run_script(
        "rm /opt/amazon/efa_installed_packages; mkdir -p /var/cache/trainyard/efa/unpacked/aws-efa-installer/rest"
    )
    assert node.run_role("efa", **variables(download)).exit_code == 0
    assert len(installer_runs(node)) == 2


def test_the_scripts_have_valid_syntax() -> None:
    for script in FILES.glob("*.sh"):
        assert subprocess.run(["/bin/sh", "-n", str(script)]).returncode == 0, script
