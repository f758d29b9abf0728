"""A booted machine by itself: its boot, its reboot, its end, and what it must not reach."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rehearsal.hypervisor.nspawn.network import NAMES
from rehearsal.hypervisor.registry import sweep
from tests.machines import Booted, booted
from tests.polling import eventually

pytestmark = pytest.mark.booted


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("machine")) as made:
        yield made


def test_systemd_is_its_first_process(node: Booted) -> None:
    assert node.sh("cat /proc/1/comm").strip() == "systemd"


def test_it_has_one_address_and_reaches_nothing_outside(node: Booted) -> None:
    assert "10.0.0.10/20" in node.sh("ip -brief address show dev eth0")
    refused = node.machine.run("timeout", "5", "bash", "-c", "echo > /dev/tcp/192.0.2.1/80")
    assert refused.returncode != 0


def test_it_can_write_neither_to_what_is_shared_nor_to_the_base(node: Booted) -> None:
    assert node.machine.run("touch", f"{sys.prefix}/mine").returncode != 0
    node.sh("touch /usr/bin/mine")
    assert not (node.machine.hardware.layers[-1] / "usr/bin/mine").exists()


def test_it_opens_no_device_of_this_machine(node: Booted) -> None:
    made = node.machine.run("/bin/sh", "-c", "mknod /root/disk b 254 0 && head -c 1 /root/disk")
    assert made.returncode != 0


def test_its_processor_time_is_counted(node: Booted) -> None:
    before = node.machine.cgroup.cpu_seconds()
    node.sh("systemd-run --wait -q /bin/sh -c 'i=0; while [ $$i -lt 200000 ]; do i=$$((i+1)); done'")
    assert node.machine.cgroup.cpu_seconds() > before


def test_a_reboot_keeps_its_disk_and_its_journal(node: Booted) -> None:
    node.sh("echo kept > /root/kept; systemctl reboot")
    eventually(lambda: node.machine.boots == 2, "the second boot")
    eventually(lambda: node.machine.state() in {"running", "degraded"}, "the end of the second boot")
    assert node.sh("cat /root/kept") == "kept\n"
    assert node.sh("journalctl --list-boots -q | wc -l").strip() == "2"


OWNER = """
import sys, time
from pathlib import Path
from tests.machines import booted
with booted(Path(sys.argv[1])) as made:
    print(made.machine.hardware.namespace, flush=True)
    time.sleep(600)
"""


def test_it_shuts_down_when_its_owner_is_killed_and_is_swept_up(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4]
    ) as owner:
        assert owner.stdout is not None
        namespace = owner.stdout.readline().strip()
        os.kill(owner.pid, signal.SIGKILL)
    eventually(lambda: not machines(namespace), "the machine's end")
    sweep(tmp_path)
    assert not (NAMES / namespace).exists()
    assert list(Path("/sys/fs/cgroup").glob(f"**/{namespace}")) == []


def machines(namespace: str) -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if f"--machine={namespace}" in (one.info["cmdline"] or ())]
