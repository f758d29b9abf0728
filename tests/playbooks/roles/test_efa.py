"""The role `efa` on a booted machine, with an installer that the test has made and signed."""

import hashlib
import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.apt_repository import NO_SOURCES, Repository, repository
from tests.machines import ROOT, Booted, Play, booted
from tests.playbooks.roles.amazon import efa_installer

FILES = ROOT / "playbooks/roles/efa/files"
FOLDER = "/opt/amazon"


def verify() -> ModuleType:
    spec = importlib.util.spec_from_file_location("efa_verify", FILES / "verify.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_device_listed_under_two_fabrics_counts_once() -> None:
    told = "provider: efa\n    fabric: efa\n    domain: rdmap0s6-rdm\n"
    other = "provider: efa\n    fabric: efa-direct\n    domain: rdmap0s6-rdm\n    domain: rdmap1s0-dgrm\n"
    assert verify().devices(told + other) == ["rdmap0s6", "rdmap1s0"]


def test_devices_on_the_bus_are_counted_by_amazons_ids(tmp_path: Path) -> None:
    for name, vendor, device in [("a", "0x1d0f", "0xefa2"), ("b", "0x1d0f", "0xec20"), ("c", "0x10de", "0xefa0")]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "device").write_text(device + "\n")
    assert verify().attached(tmp_path) == 1


def test_libraries_that_torch_brings_are_not_missed() -> None:
    ldd = "\tlibcudart.so.12 => not found\n\tlibfabric.so.1 => not found\n\tlibc.so.6 => /lib/libc.so.6 (0x0)\n"
    assert verify().missing(ldd) == ["libfabric.so.1"]


def test_fewer_huge_pages_than_asked_for_are_told() -> None:
    problem = verify().huge_pages_problem
    assert problem(8, "HugePages_Total:       8\n") == ""
    assert problem(8, "HugePages_Total:       7\n") == "7 huge pages are reserved, not 8 (base_huge_pages)"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("efa"), NO_SOURCES) as made:
        yield made


@pytest.fixture(scope="module")
def download(node: Booted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with repository(tmp_path_factory.mktemp("download"), node.network) as made:
        made.sign(efa_installer(made.folder, "1.50.0"))
        made.sign(efa_installer(made.folder, "1.37.0"))
        yield made


@pytest.fixture(autouse=True)
def bare(request: pytest.FixtureRequest) -> None:
    """The machine as if it had never seen the role."""
    if request.node.get_closest_marker("booted"):
        node: Booted = request.getfixturevalue("node")
        node.sh(
            f"rm -rf {FOLDER} /var/log/ran /var/cache/trainyard /etc/ld.so.conf.d/60-trainyard*; ldconfig;"
            "rm -rf /etc/efa-used /run/trainyard; echo 4 > /etc/efa-devices"
        )


def variables(download: Repository, version: str = "1.50.0") -> dict[str, Any]:
    return {
        "efa_interfaces": 4,
        "efa_version": version,
        "efa_url": f"{download.url}/aws-efa-installer-{version}.tar.gz",
        "efa_key_url": download.key_url,
        "efa_key_fingerprint": download.fingerprint,
        "efa_wait": 0,
    }


def ran(node: Booted) -> list[str]:
    """Options of each time that the installer ran."""
    return node.sh("cat /var/log/ran || true").splitlines()


def said(play: Play) -> str:
    """The failing task's words, without the line breaks that YAML's output puts in."""
    assert play.code == 2, play.told
    return play.failure


@pytest.mark.booted
def test_what_is_rightly_signed_is_installed_and_a_second_run_changes_nothing(
    node: Booted, download: Repository
) -> None:
    first = node.role("efa", **variables(download))
    assert first.code == 0, first.told
    assert ran(node) == ["--yes --skip-limit-conf --no-verify --mpi=openmpi4"]
    assert node.sh("ldconfig -p | grep -c 'libnccl-net-ofi.so .*=> /opt/amazon/ofi-nccl/lib/'") == "1\n"
    assert node.sh("ls -A /var/cache/trainyard") == ""
    again = node.role("efa", **variables(download))
    assert (again.code, again.changed) == (0, ()), again.told


@pytest.mark.booted
def test_what_another_key_has_signed_is_refused_before_it_runs(node: Booted, download: Repository) -> None:
    wrong = "0" * 40
    play = node.role("efa", **variables(download) | {"efa_key_fingerprint": wrong})
    assert f"it is signed by {download.fingerprint}, and only {wrong} is trusted (efa_key_fingerprint)" in said(play)
    assert ran(node) == []


@pytest.mark.booted
def test_what_was_changed_after_its_signature_is_refused_before_it_runs(node: Booted, download: Repository) -> None:
    sound = download.folder / "aws-efa-installer-1.50.0.tar.gz"
    changed = download.folder / "changed.tar.gz"
    changed.write_bytes(sound.read_bytes() + b"\0")
    (download.folder / "changed.tar.gz.sig").write_bytes(Path(f"{sound}.sig").read_bytes())
    play = node.role("efa", **variables(download) | {"efa_url": f"{download.url}/changed.tar.gz"})
    assert "its signature is not good: " in said(play)
    assert "BAD signature" in said(play)
    assert ran(node) == []
    # What was refused is not taken for the next one.
    assert node.role("efa", **variables(download)).code == 0


@pytest.mark.booted
def test_a_checksum_takes_the_signatures_place(node: Booted, download: Repository) -> None:
    sound = hashlib.sha256((download.folder / "aws-efa-installer-1.50.0.tar.gz").read_bytes()).hexdigest()
    own = variables(download) | {"efa_key_url": f"{download.url}/none"}
    play = node.role("efa", **own, efa_sha256="0" * 64)
    assert f"its SHA-256 is {sound}, not {'0' * 64}: name the one of this version (efa_sha256)" in said(play)
    assert ran(node) == []
    assert node.role("efa", **own, efa_sha256=sound.upper()).code == 0
    assert len(ran(node)) == 1


@pytest.mark.booted
def test_what_the_image_has_is_kept_unless_it_is_too_old(node: Booted, download: Repository) -> None:
    old = variables(download, "1.37.0") | {"efa_oldest": "1.30.0"}
    assert node.role("efa", **old).code == 0
    assert node.role("efa", **variables(download) | {"efa_oldest": "1.37.0"}).changed == ()
    assert len(ran(node)) == 1
    assert "efa : Check it, then run it" in node.role("efa", **variables(download)).changed
    assert "1.50.0" in node.sh("head -n 1 /opt/amazon/efa_installed_packages")


@pytest.mark.booted
def test_another_count_of_devices_than_the_types_is_told(node: Booted, download: Repository) -> None:
    node.put("/etc/efa-devices", "3")
    play = node.role("efa", **variables(download))
    assert "libfabric sees 3 EFA devices (rdmap1s0, rdmap2s0, rdmap3s0), the type has 4" in said(play)
    node.put("/etc/efa-devices", "5")
    assert "libfabric sees 5 EFA devices" in said(node.role("efa", **variables(download)))


@pytest.mark.booted
def test_devices_that_appear_late_are_waited_for(node: Booted, download: Repository) -> None:
    node.put("/etc/efa-devices", "0\n3\n4\n")
    assert node.role("efa", **variables(download) | {"efa_wait": 60}).code == 0


@pytest.mark.booted
def test_a_plugin_that_cannot_be_loaded_is_told(node: Booted, download: Repository) -> None:
    assert node.role("efa", **variables(download)).code == 0
    node.sh("truncate -s 4096 /opt/amazon/ofi-nccl/lib/libnccl-net.so")
    assert "libnccl-net-ofi.so can't be loaded: " in said(node.role("efa", **variables(download)))
    node.sh("rm /opt/amazon/ofi-nccl/lib/*ofi.so; ldconfig")
    assert "the loader does not know libnccl-net-ofi.so" in said(node.role("efa", **variables(download)))


@pytest.mark.booted
def test_a_download_that_is_away_for_a_while_is_tried_again(node: Booted, download: Repository) -> None:
    download.drop(2)
    assert node.role("efa", **variables(download)).code == 0
    assert download.dropped()


@pytest.mark.booted
def test_a_driver_in_use_asks_for_a_reboot_before_anything_is_looked_at(node: Booted, download: Repository) -> None:
    node.sh("echo 0 > /etc/efa-devices; touch /etc/efa-used")
    assert node.role("efa", **variables(download)).code == 0
    assert "could not unload the older driver" in node.sh("cat /run/trainyard/reboot-required")
    node.sh("rm -r /run/trainyard")  # as the boot does
    assert "libfabric sees 0 EFA devices" in said(node.role("efa", **variables(download)))


@pytest.mark.booted
def test_a_run_that_was_killed_is_taken_up(node: Booted, download: Repository) -> None:
    """Killed as the installer runs: its archive is there, half of what it installs too."""
    assert node.role("efa", **variables(download) | {"efa_options": ["--yes"]}).code == 0
    node.sh("rm /opt/amazon/efa_installed_packages; mkdir -p /var/cache/trainyard/efa/unpacked/aws-efa-installer/rest")
    assert node.role("efa", **variables(download)).code == 0
    assert len(ran(node)) == 2


def test_the_scripts_are_sound() -> None:
    for script in FILES.glob("*.sh"):
        assert subprocess.run(["/bin/sh", "-n", str(script)]).returncode == 0, script
