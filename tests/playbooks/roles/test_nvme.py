"""The role `nvme`: its decisions, loop devices of this machine, and a booted machine with stand-ins for its disks."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rehearsal.hypervisor.nspawn.image import base_root
from tests.apt_repository import NO_SOURCES, Package, repository
from tests.machines import ROOT, BootedMachine, PlaybookResult, boot_machine
from tests.playbooks.roles.amazon import STORE
from tests.polling import eventually

SCRIPT = ROOT / "playbooks/roles/nvme/files/scratch.py"
MODEL = "Amazon EC2 NVMe Instance Storage        "  # with the kernel's padding
MOUNT_POINT = "/opt/trainyard/scratch"
MIB = 1 << 20
A, B = "/dev/nvme1n1", "/dev/nvme2n1"


def load_script() -> ModuleType:
    """Import the role's scratch.py."""
    spec = importlib.util.spec_from_file_location("nvme_scratch", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses needs the module there
    spec.loader.exec_module(module)
    return module


scratch = load_script()


def disk(path: str, *signatures: tuple[str, str], children: tuple[Any, ...] = (), mounts: tuple[str, ...] = ()) -> Any:
    all_signatures = tuple(scratch.Signature(*signature) for signature in signatures)
    return scratch.Device(path, model=MODEL.strip(), signatures=all_signatures, children=children, mounts=mounts)


def array(*signatures: tuple[str, str], mounts: tuple[str, ...] = ()) -> Any:
    all_signatures = tuple(scratch.Signature(*signature) for signature in signatures)
    return scratch.Device("/dev/md127", kind="raid0", signatures=all_signatures, mounts=mounts)


PROJECT_RAID = ("linux_raid_member", "any:trainyard")
FOREIGN_RAID = ("linux_raid_member", "db:data")
PROJECT_XFS = ("xfs", "trainyard")


@pytest.mark.parametrize(
    ("disks", "action"),
    [
        ([disk(A), disk(B)], "create"),
        ([disk(A, PROJECT_RAID), disk(B, PROJECT_RAID)], "assemble"),
        ([disk(A, PROJECT_RAID), disk(B)], "clear"),
        ([disk(A, PROJECT_RAID, children=(array(),)), disk(B, PROJECT_RAID, children=(array(),))], "format"),
        (
            [
                disk(A, PROJECT_RAID, children=(array(PROJECT_XFS),)),
                disk(B, PROJECT_RAID, children=(array(PROJECT_XFS),)),
            ],
            "mount",
        ),
        ([disk(A, PROJECT_RAID, children=(array(PROJECT_XFS, mounts=(MOUNT_POINT,)),))] * 2, "done"),
        ([disk(A)], "format"),
        ([disk(A, PROJECT_XFS)], "mount"),
        ([disk(A, PROJECT_XFS, mounts=(MOUNT_POINT,))], "done"),
    ],
)
def test_the_next_step_is_the_first_missing_one(disks: list[Any], action: str) -> None:
    assert scratch.next_step(disks, MOUNT_POINT).action == action


@pytest.mark.parametrize(
    ("foreign", "content"),
    [
        (disk(B, FOREIGN_RAID), "linux_raid_member db:data"),
        (disk(B, ("LVM2_member", "")), "LVM2_member"),
        (disk(B, ("gpt", "")), "gpt"),
        (disk(B, ("ext4", "trainyard")), "ext4 trainyard"),
        (disk(B, mounts=("/data",)), "mounted at /data"),
        (disk(B, children=(scratch.Device("/dev/nvme2n1p1", kind="part"),)), "part /dev/nvme2n1p1"),
    ],
)
def test_a_disk_with_foreign_content_is_refused(foreign: Any, content: str) -> None:
    for other in (disk(A), disk(A, PROJECT_RAID)):
        with pytest.raises(scratch.ScratchError, match=f"{B} has {content}"):
            scratch.next_step([other, foreign], MOUNT_POINT)


def test_instance_store_disks_are_recognized_by_their_model() -> None:
    root = {"name": "/dev/nvme0n1", "type": "disk", "model": "Amazon Elastic Block Store", "mountpoints": [None]}
    instance_store = {"name": A, "type": "disk", "model": MODEL, "size": 7, "mountpoints": [None]}
    array = {"name": "/dev/md127", "type": "raid0", "model": None, "mountpoints": [MOUNT_POINT]}
    disks = scratch.instance_store_disks(
        scratch.parse_devices(json.dumps({"blockdevices": [root, instance_store | {"children": [array]}]}))
    )
    assert [device.path for device in disks] == [A]
    assert disks[0].size == 7
    assert disks[0].all_mounts == (MOUNT_POINT,)


def test_a_different_number_of_disks_is_reported() -> None:
    with pytest.raises(scratch.ScratchError, match=rf"has 1 disks \({A}\), the instance type has 2"):
        scratch.check_disk_count([disk(A)], 2)


@pytest.mark.parametrize(
    ("properties", "state"),
    [
        ("LoadState=not-found\nActiveState=inactive\n", "absent"),
        ("LoadState=loaded\nActiveState=activating\nJob=17\n", "pending"),
        ("LoadState=loaded\nActiveState=inactive\nJob=17\n", "pending"),
        ("LoadState=loaded\nActiveState=inactive\nJob=0\n", "finished"),
        ("LoadState=loaded\nActiveState=failed\n", "finished"),
    ],
)
def test_the_service_of_the_image_is_pending_while_it_has_a_job(properties: str, state: str) -> None:
    assert scratch.service_state(properties) == state


# On loop devices: the tools are real, only the model of the disks is not.

LSBLK = f"""\
#!/usr/bin/python3
import json, subprocess, sys
output = json.loads(subprocess.run(["/usr/bin/lsblk", *sys.argv[1:]], capture_output=True, check=True).stdout)
for item in output["blockdevices"]:
    if item["name"] in open("/etc/disks").read().split():
        item |= {{"type": "disk", "model": "{MODEL}"}}
print(json.dumps(output))
"""
NO_SERVICE = "#!/bin/sh\necho LoadState=not-found\n"
CREATE = (
    "create_scratch() { "
    f"/scratch.py create $(wc -w < /etc/disks) {MOUNT_POINT} dlami-nvme.service /opt/dlami/nvme 5 cache; }}"
)
VERIFY = f"/scratch.py verify $(wc -w < /etc/disks) {MOUNT_POINT}"
MD = pytest.param(2, marks=pytest.mark.skipif(not Path("/proc/mdstat").exists(), reason="this kernel has no RAID (md)"))


class LoopDevices:
    """A root file system with loop devices as its instance store. The mounts end with each script."""

    def __init__(self, folder: Path, disks: list[str]) -> None:
        self.folder, self.disks = folder, disks
        for name in ("upper/etc", "upper/usr/local/bin", "work", "root"):
            (folder / name).mkdir(parents=True)
        files = {"usr/local/bin/lsblk": LSBLK, "usr/local/bin/systemctl": NO_SERVICE}
        for path, text in (files | {"scratch.py": SCRIPT.read_text(), "etc/disks": " ".join(disks)}).items():
            (folder / "upper" / path).write_text(text)
            (folder / "upper" / path).chmod(0o755)

    def run_script(self, script: str) -> str:
        """Return the output of the script, including its errors."""
        lines = f"""\
            cd {self.folder}
            mount -t overlay overlay -o lowerdir={base_root(print)},upperdir=upper,workdir=work root
            mount --rbind /dev root/dev; mount -t proc proc root/proc; mount -t sysfs sysfs root/sys
            exec chroot root /bin/sh -c "$0" 2>&1
            """
        command = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", textwrap.dedent(lines)]
        process = subprocess.run(
            [*command, f"{CREATE}\n{script}"],
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        return process.stdout


@pytest.fixture
def loop_devices(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoopDevices]:
    paths: list[str] = []
    try:
        for number in range(request.param):
            image = tmp_path / f"disk{number}"
            image.touch()
            os.truncate(image, 4096 * MIB)
            process = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True)
            if process.returncode:
                pytest.skip(f"no loop devices: {process.stderr.strip()}")
            paths.append(process.stdout.strip())
        yield LoopDevices(tmp_path, paths)
    finally:
        if len(paths) > 1:
            subprocess.run(["mdadm", "--stop", "/dev/md/trainyard"], capture_output=True)
        for path in paths:
            subprocess.run(["losetup", "--detach", path], check=True)


@pytest.mark.booted
@pytest.mark.parametrize("loop_devices", [1, MD], indirect=True)
def test_blank_disks_are_formatted_once(loop_devices: LoopDevices) -> None:
    output = loop_devices.run_script(
        f"create_scratch; {VERIFY} && echo good; create_scratch && echo second;findmnt -no FSTYPE,OPTIONS {MOUNT_POINT}"
    )
    is_expected = "changed: create" in output if len(loop_devices.disks) > 1 else "changed: create" not in output
    assert is_expected, output
    assert output.count("changed: format") == output.count("changed: mount") == 1, output
    assert output.splitlines()[-3:-1] == ["good", "second"], output
    assert output.splitlines()[-1].startswith("xfs "), output
    assert "noatime" in output.splitlines()[-1], output


@pytest.mark.booted
@pytest.mark.parametrize("loop_devices", [1, MD], indirect=True)
def test_the_content_is_kept_after_a_reboot(loop_devices: LoopDevices) -> None:
    loop_devices.run_script(f"create_scratch; echo 7 > {MOUNT_POINT}/cache/kept")
    output = loop_devices.run_script(f"create_scratch; cat {MOUNT_POINT}/cache/kept")
    assert "format" not in output, output
    assert output.splitlines()[-1] == "7", output


@pytest.mark.booted
@pytest.mark.parametrize("loop_devices", [1, MD], indirect=True)
def test_a_foreign_file_system_is_not_changed(loop_devices: LoopDevices) -> None:
    device = loop_devices.disks[-1]
    output = loop_devices.run_script(f"mkfs.ext4 -q -L data {device}; create_scratch && echo DONE; wipefs {device}")
    assert f"{device} has ext4 data" in output, output
    assert "DONE" not in output, output
    assert output.splitlines()[-1].split()[2] == "ext4", output


@pytest.mark.booted
@pytest.mark.parametrize("loop_devices", [1], indirect=True)
def test_an_interrupted_format_is_repeated(loop_devices: LoopDevices) -> None:
    """The first block has the label, the following blocks are not written yet."""
    device = loop_devices.disks[0]
    output = loop_devices.run_script(
        f"mkfs.xfs -q -L trainyard {device}; dd if=/dev/zero of={device} bs=512 seek=1 count=99 conv=fsync status=none;"
        f"create_scratch; {VERIFY} && echo good"
    )
    assert "again, because" in output, output
    assert output.splitlines()[-1] == "good", output


# On a booted machine without disks: STORE is a stand-in for the programs that list and change them.

IMAGE_SERVICE = """\
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c '%s'
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    with boot_machine(tmp_path_factory.mktemp("nvme"), NO_SOURCES) as machine:
        machine.write_file("/usr/local/sbin/store", STORE)
        links = "lsblk wipefs mdadm mkfs.xfs mount"
        machine.run_script(f"cd /usr/local/sbin; chmod +x store; for name in {links}; do ln -s store $name; done")
        yield machine


@pytest.fixture
def machine(node: BootedMachine) -> Iterator[BootedMachine]:
    """The machine without mounts; services of an image are removed after the test."""
    yield node
    unmount_all(node)
    node.run_script(
        "systemctl stop dlami-nvme.service || true; rm -f /etc/systemd/system/dlami*; systemctl daemon-reload"
    )


def unmount_all(node: BootedMachine) -> None:
    node.run_script(
        f"for at in {MOUNT_POINT} /opt/dlami/nvme; do ! mountpoint -q $at || umount $at; done; rm -f /var/log/store"
    )


def set_disks(node: BootedMachine, **state: Any) -> None:
    node.write_file("/etc/store.json", json.dumps({"disks": {A: None, B: None}} | state))


def run_nvme(node: BootedMachine, **variables: Any) -> PlaybookResult:
    return node.run_role("nvme", **{"nvme_disks": 2} | variables)


def disk_changes(node: BootedMachine) -> list[str]:
    """Return program and first argument of each change of the disks, in order."""
    lines = node.run_script("cat /var/log/store || true").splitlines()
    return [" ".join(line.split()[:2]) for line in lines]


@pytest.mark.booted
def test_the_first_run_converges_and_a_second_run_changes_nothing(machine: BootedMachine) -> None:
    set_disks(machine)
    first = run_nvme(machine)
    assert first.exit_code == 0, first.output
    assert disk_changes(machine) == ["mdadm --create", "mkfs.xfs -q"]
    assert machine.run_script(f"test -d {MOUNT_POINT}/cache; findmnt -no OPTIONS {MOUNT_POINT}").count("noatime") == 1
    second = run_nvme(machine)
    assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


@pytest.mark.booted
def test_missing_tools_are_installed(machine: BootedMachine, tmp_path_factory: pytest.TempPathFactory) -> None:
    set_disks(machine)
    machine.run_script("dpkg --purge --force-depends mdadm")
    with repository(tmp_path_factory.mktemp("tools"), machine.network) as source:
        source.add(Package(name="mdadm", version="99", files={"/usr/sbin/mdadm": "#!/bin/sh\n"}))
        source.add_source_to(machine)
        result = run_nvme(machine)
        machine.run_script("rm /etc/apt/sources.list.d/tests.list")
    assert "nvme : Install mdadm and xfsprogs" in result.changed_tasks, result.output
    assert "nvme : Install mdadm and xfsprogs" not in run_nvme(machine).changed_tasks


@pytest.mark.booted
def test_the_array_is_assembled_after_a_reboot_and_created_again_after_a_stop(machine: BootedMachine) -> None:
    member = ["linux_raid_member", "any:trainyard"]
    set_disks(machine)
    assert run_nvme(machine).exit_code == 0
    machine.run_script("rm /var/log/store")
    boots = machine.machine.boots
    machine.machine.run_command("systemctl", "reboot")
    eventually(lambda: machine.machine.boots > boots and machine.machine.systemd_state() == "running", "the next boot")
    set_disks(machine, disks={A: member, B: member}, array_on_disks=["xfs", "trainyard"])
    assert run_nvme(machine).exit_code == 0
    assert disk_changes(machine) == ["mdadm --assemble"]
    unmount_all(machine)
    set_disks(machine)
    assert run_nvme(machine).exit_code == 0
    assert disk_changes(machine) == ["mdadm --create", "mkfs.xfs -q"]


@pytest.mark.booted
def test_a_foreign_disk_is_reported_and_not_changed(machine: BootedMachine) -> None:
    set_disks(machine, disks={A: None, B: ["LVM2_member", ""]})
    result = run_nvme(machine)
    assert result.exit_code == 2
    assert f"{B} has LVM2_member. This role did not create it" in result.failure
    assert disk_changes(machine) == []


@pytest.mark.booted
def test_a_missing_disk_is_reported_and_no_disk_is_changed(machine: BootedMachine) -> None:
    set_disks(machine)
    result = run_nvme(machine, nvme_disks=3)
    assert result.exit_code == 2
    assert f"the instance store has 2 disks ({A}, {B}), the instance type has 3" in result.failure
    assert disk_changes(machine) == []


@pytest.mark.booted
def test_without_an_instance_store_the_role_changes_nothing(machine: BootedMachine) -> None:
    set_disks(machine, disks={})
    result = run_nvme(machine, nvme_disks=0)
    assert (result.exit_code, result.changed_tasks) == (0, ()), result.output
    machine.run_script(f"! mountpoint -q {MOUNT_POINT}")


@pytest.mark.booted
def test_the_file_system_of_the_image_is_used_when_its_service_has_finished(machine: BootedMachine) -> None:
    set_disks(machine, disks={A: ["LVM2_member", ""], B: ["LVM2_member", ""]})
    mounts = "sleep 6; mkdir -p /opt/dlami/nvme; /usr/bin/mount -t tmpfs -o size=16m image /opt/dlami/nvme"
    machine.write_file("/etc/systemd/system/dlami-nvme.service", IMAGE_SERVICE % mounts)
    machine.run_script("systemctl daemon-reload; systemctl start --no-block dlami-nvme.service")
    first = run_nvme(machine)
    assert first.exit_code == 0, first.output
    assert machine.run_script(f"findmnt -no SOURCE {MOUNT_POINT}") == "image\n"
    machine.run_script("test -d /opt/dlami/nvme/cache")
    assert disk_changes(machine) == []
    second = run_nvme(machine)
    assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


@pytest.mark.booted
def test_a_service_of_the_image_that_does_not_finish_is_reported(machine: BootedMachine) -> None:
    set_disks(machine)
    machine.write_file("/etc/systemd/system/dlami-nvme.service", IMAGE_SERVICE % "sleep 600")
    machine.run_script("systemctl daemon-reload; systemctl start --no-block dlami-nvme.service")
    result = run_nvme(machine, nvme_image_timeout_seconds=1)
    assert result.exit_code == 2
    assert "dlami-nvme.service has not finished within 1 s: check `journalctl -u dlami-nvme.service`" in result.failure
    assert disk_changes(machine) == []


@pytest.mark.booted
def test_the_role_creates_the_file_system_if_the_image_does_not(machine: BootedMachine) -> None:
    set_disks(machine)
    machine.write_file("/etc/systemd/system/dlami-nvme.service", IMAGE_SERVICE % "exit 0")
    machine.run_script("systemctl daemon-reload; systemctl start dlami-nvme.service")
    assert run_nvme(machine).exit_code == 0
    assert disk_changes(machine) == ["mdadm --create", "mkfs.xfs -q"]


@pytest.mark.booted
def test_a_file_system_smaller_than_the_disks_is_reported(machine: BootedMachine) -> None:
    set_disks(machine)
    machine.run_script(
        f"mkdir -p {MOUNT_POINT} /opt/dlami/nvme; /usr/bin/mount -t tmpfs -o size=8m image /opt/dlami/nvme"
    )
    result = run_nvme(machine)
    assert result.exit_code == 2
    assert "has 8,388,608 bytes, and all disks have 16,777,216" in result.failure
