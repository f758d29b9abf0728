"""A booted machine: boot, reboot, shutdown, and isolation."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rehearsal.hypervisor.nspawn.network import NETNS_FOLDER
from rehearsal.hypervisor.registry import remove_leftovers
from tests.machines import BootedMachine, boot_machine
from tests.polling import eventually

pytestmark = pytest.mark.booted


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    """A booted machine."""
    with boot_machine(tmp_path_factory.mktemp("machine")) as machine:
        yield machine


def test_systemd_is_process_1(node: BootedMachine) -> None:
    assert node.run_script("cat /proc/1/comm").strip() == "systemd"


def test_machine_has_one_address_and_no_route_to_other_networks(node: BootedMachine) -> None:
    assert "10.0.0.10/20" in node.run_script("ip -brief address show dev eth0")
    refused = node.machine.run_command("timeout", "5", "bash", "-c", "echo > /dev/tcp/192.0.2.1/80")
    assert refused.returncode != 0


def test_machine_cannot_write_to_shared_folders_or_the_base_image(node: BootedMachine) -> None:
    assert node.machine.run_command("touch", f"{sys.prefix}/test-file").returncode != 0
    node.run_script("touch /usr/bin/test-file")
    assert not (node.machine.spec.layers[-1] / "usr/bin/test-file").exists()


def test_machine_cannot_open_devices_of_this_computer(node: BootedMachine) -> None:
    process = node.machine.run_command("/bin/sh", "-c", "mknod /root/disk b 254 0 && head -c 1 /root/disk")
    assert process.returncode != 0


def test_cpu_time_is_measured(node: BootedMachine) -> None:
    before = node.machine.cgroup.cpu_seconds()
    node.run_script("systemd-run --wait -q /bin/sh -c 'i=0; while [ $$i -lt 200000 ]; do i=$$((i+1)); done'")
    assert node.machine.cgroup.cpu_seconds() > before


def test_reboot_keeps_disk_and_journal(node: BootedMachine) -> None:
    node.run_script("echo kept > /root/file; systemctl reboot")
    eventually(lambda: node.machine.boots == 2, "the second boot")
    eventually(lambda: node.machine.systemd_state() in {"running", "degraded"}, "the end of the second boot")
    assert node.run_script("cat /root/file") == "kept\n"
    assert node.run_script("journalctl --list-boots -q | wc -l").strip() == "2"


def test_restart_without_shutdown_keeps_the_disk(node: BootedMachine) -> None:
    boots = node.machine.boots
    node.run_script("echo kept > /root/other; sync")
    node.machine.restart()
    eventually(lambda: node.machine.boots == boots + 1, "the next boot")
    eventually(lambda: node.machine.systemd_state() in {"running", "degraded"}, "the end of the boot")
    assert node.run_script("cat /root/other") == "kept\n"


OWNER = """
import sys, time
from pathlib import Path
from tests.machines import boot_machine
with boot_machine(Path(sys.argv[1])) as machine:
    print(machine.machine.spec.namespace, flush=True)
    time.sleep(600)
"""


def test_machine_shuts_down_when_its_owner_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4]
    ) as owner:
        assert owner.stdout is not None
        namespace = owner.stdout.readline().strip()
        os.kill(owner.pid, signal.SIGKILL)
    eventually(lambda: not find_machines(namespace), "the shutdown of the machine")
    remove_leftovers(tmp_path)
    assert not (NETNS_FOLDER / namespace).exists()
    assert list(Path("/sys/fs/cgroup").glob(f"**/{namespace}")) == []


def find_machines(namespace: str) -> list[psutil.Process]:
    """Return the systemd-nspawn processes of a namespace."""
    argument = f"--machine={namespace}"
    return [process for process in psutil.process_iter(["cmdline"]) if argument in (process.info["cmdline"] or ())]
