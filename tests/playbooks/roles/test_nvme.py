"""The role `nvme`: what it decides, on loop devices of this machine, and on a booted machine whose disks are told."""

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
from tests.machines import ROOT, Booted, Play, booted
from tests.playbooks.roles.amazon import STORE
from tests.polling import eventually

SCRIPT = ROOT / "playbooks/roles/nvme/files/scratch.py"
MODEL = "Amazon EC2 NVMe Instance Storage        "  # as the kernel gives it
MOUNT_POINT = "/opt/trainyard/scratch"
MIB = 1 << 20
A, B = "/dev/nvme1n1", "/dev/nvme2n1"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nvme_scratch", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


scratch = loaded()


def disk(path: str, *signatures: tuple[str, str], children: tuple[Any, ...] = (), mounts: tuple[str, ...] = ()) -> Any:
    held = tuple(scratch.Signature(*signature) for signature in signatures)
    return scratch.Device(path, model=MODEL.strip(), signatures=held, children=children, mounts=mounts)


def array(*signatures: tuple[str, str], mounts: tuple[str, ...] = ()) -> Any:
    held = tuple(scratch.Signature(*signature) for signature in signatures)
    return scratch.Device("/dev/md127", kind="raid0", signatures=held, mounts=mounts)


OURS = ("linux_raid_member", "any:trainyard")
THEIRS = ("linux_raid_member", "db:data")
SCRATCH = ("xfs", "trainyard")


@pytest.mark.parametrize(
    ("disks", "action"),
    [
        ([disk(A), disk(B)], "create"),
        ([disk(A, OURS), disk(B, OURS)], "assemble"),
        ([disk(A, OURS), disk(B)], "clear"),
        ([disk(A, OURS, children=(array(),)), disk(B, OURS, children=(array(),))], "format"),
        ([disk(A, OURS, children=(array(SCRATCH),)), disk(B, OURS, children=(array(SCRATCH),))], "mount"),
        ([disk(A, OURS, children=(array(SCRATCH, mounts=(MOUNT_POINT,)),))] * 2, "done"),
        ([disk(A)], "format"),
        ([disk(A, SCRATCH)], "mount"),
        ([disk(A, SCRATCH, mounts=(MOUNT_POINT,))], "done"),
    ],
)
def test_only_what_lacks_is_made(disks: list[Any], action: str) -> None:
    assert scratch.next_step(disks, MOUNT_POINT).action == action


@pytest.mark.parametrize(
    ("strange", "told"),
    [
        (disk(B, THEIRS), "linux_raid_member db:data"),
        (disk(B, ("LVM2_member", "")), "LVM2_member"),
        (disk(B, ("gpt", "")), "gpt"),
        (disk(B, ("ext4", "trainyard")), "ext4 trainyard"),
        (disk(B, mounts=("/data",)), "mounted at /data"),
        (disk(B, children=(scratch.Device("/dev/nvme2n1p1", kind="part"),)), "part /dev/nvme2n1p1"),
    ],
)
def test_a_disk_that_holds_something_of_others_is_left_alone(strange: Any, told: str) -> None:
    for other in (disk(A), disk(A, OURS)):
        with pytest.raises(scratch.Problem, match=f"{B} holds {told}"):
            scratch.next_step([other, strange], MOUNT_POINT)


def test_the_instance_stores_disks_are_found_by_their_model() -> None:
    root = {"name": "/dev/nvme0n1", "type": "disk", "model": "Amazon Elastic Block Store", "mountpoints": [None]}
    mine = {"name": A, "type": "disk", "model": MODEL, "size": 7, "mountpoints": [None]}
    on_top = {"name": "/dev/md127", "type": "raid0", "model": None, "mountpoints": [MOUNT_POINT]}
    found = scratch.store(scratch.parsed(json.dumps({"blockdevices": [root, mine | {"children": [on_top]}]})))
    assert [device.path for device in found] == [A]
    assert found[0].size == 7
    assert found[0].all_mounts == (MOUNT_POINT,)


def test_another_number_of_disks_is_told() -> None:
    with pytest.raises(scratch.Problem, match=rf"has 1 disks \({A}\), the type has 2"):
        scratch.counted([disk(A)], 2)


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ("LoadState=not-found\nActiveState=inactive\n", "absent"),
        ("LoadState=loaded\nActiveState=activating\nJob=17\n", "pending"),
        ("LoadState=loaded\nActiveState=inactive\nJob=17\n", "pending"),
        ("LoadState=loaded\nActiveState=inactive\nJob=0\n", "over"),
        ("LoadState=loaded\nActiveState=failed\n", "over"),
    ],
)
def test_the_images_service_is_waited_for_while_it_has_a_job(told: str, state: str) -> None:
    assert scratch.service_state(told) == state


# On loop devices: the tools are real, only the disks' model is not.

LSBLK = f"""\
#!/usr/bin/python3
import json, subprocess, sys
told = json.loads(subprocess.run(["/usr/bin/lsblk", *sys.argv[1:]], capture_output=True, check=True).stdout)
for item in told["blockdevices"]:
    if item["name"] in open("/etc/disks").read().split():
        item |= {{"type": "disk", "model": "{MODEL}"}}
print(json.dumps(told))
"""
NO_SERVICE = "#!/bin/sh\necho LoadState=not-found\n"
MAKE = (
    f"make_it() {{ /scratch.py make $(wc -w < /etc/disks) {MOUNT_POINT} dlami-nvme.service /opt/dlami/nvme 5 cache; }}"
)
VERIFY = f"/scratch.py verify $(wc -w < /etc/disks) {MOUNT_POINT}"
MD = pytest.param(2, marks=pytest.mark.skipif(not Path("/proc/mdstat").exists(), reason="this kernel has no RAID (md)"))


class Bench:
    """The base root with loop devices as its instance store. Its mounts end with each script."""

    def __init__(self, folder: Path, disks: list[str]) -> None:
        self.folder, self.disks = folder, disks
        for name in ("upper/etc", "upper/usr/local/bin", "work", "root"):
            (folder / name).mkdir(parents=True)
        files = {"usr/local/bin/lsblk": LSBLK, "usr/local/bin/systemctl": NO_SERVICE}
        for path, text in (files | {"scratch.py": SCRIPT.read_text(), "etc/disks": " ".join(disks)}).items():
            (folder / "upper" / path).write_text(text)
            (folder / "upper" / path).chmod(0o755)

    def sh(self, script: str) -> str:
        """What the script says, its errors too; a failing `make_it` or verify ends it where the script does not."""
        lines = f"""\
            cd {self.folder}
            mount -t overlay overlay -o lowerdir={base_root(print)},upperdir=upper,workdir=work root
            mount --rbind /dev root/dev; mount -t proc proc root/proc; mount -t sysfs sysfs root/sys
            exec chroot root /bin/sh -c "$0" 2>&1
            """
        command = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", textwrap.dedent(lines)]
        done = subprocess.run(
            [*command, f"{MAKE}\n{script}"],
            env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"},
            stdout=subprocess.PIPE,
            text=True,
            timeout=120,
        )
        return done.stdout


@pytest.fixture
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    paths: list[str] = []
    try:
        for number in range(request.param):
            image = tmp_path / f"disk{number}"
            image.touch()
            os.truncate(image, 4096 * MIB)
            made = subprocess.run(["losetup", "--find", "--show", image], capture_output=True, text=True)
            if made.returncode:
                pytest.skip(f"no loop devices here: {made.stderr.strip()}")
            paths.append(made.stdout.strip())
        yield Bench(tmp_path, paths)
    finally:
        if len(paths) > 1:
            subprocess.run(["mdadm", "--stop", "/dev/md/trainyard"], capture_output=True)
        for path in paths:
            subprocess.run(["losetup", "--detach", path], check=True)


@pytest.mark.booted
@pytest.mark.parametrize("bench", [1, MD], indirect=True)
def test_blank_disks_become_a_file_system_once(bench: Bench) -> None:
    told = bench.sh(f"make_it; {VERIFY} && echo good; make_it && echo again; findmnt -no FSTYPE,OPTIONS {MOUNT_POINT}")
    made = "changed: create" in told if len(bench.disks) > 1 else "changed: create" not in told
    assert made, told
    assert told.count("changed: format") == told.count("changed: mount") == 1, told
    assert told.splitlines()[-3:-1] == ["good", "again"], told
    assert told.splitlines()[-1].startswith("xfs "), told
    assert "noatime" in told.splitlines()[-1], told


@pytest.mark.booted
@pytest.mark.parametrize("bench", [1, MD], indirect=True)
def test_what_is_there_after_a_reboot_is_kept(bench: Bench) -> None:
    bench.sh(f"make_it; echo 7 > {MOUNT_POINT}/cache/kept")
    told = bench.sh(f"make_it; cat {MOUNT_POINT}/cache/kept")
    assert "format" not in told, told
    assert told.splitlines()[-1] == "7", told


@pytest.mark.booted
@pytest.mark.parametrize("bench", [1, MD], indirect=True)
def test_a_file_system_of_others_survives(bench: Bench) -> None:
    device = bench.disks[-1]
    told = bench.sh(f"mkfs.ext4 -q -L data {device}; make_it && echo DONE; wipefs {device}")
    assert f"{device} holds ext4 data" in told, told
    assert "DONE" not in told, told
    assert told.splitlines()[-1].split()[2] == "ext4", told


@pytest.mark.booted
@pytest.mark.parametrize("bench", [1], indirect=True)
def test_a_formatting_that_was_killed_is_done_again(bench: Bench) -> None:
    """The first block bears our label, what follows is not written yet."""
    device = bench.disks[0]
    told = bench.sh(
        f"mkfs.xfs -q -L trainyard {device}; dd if=/dev/zero of={device} bs=512 seek=1 count=99 conv=fsync status=none;"
        f"make_it; {VERIFY} && echo good"
    )
    assert "anew" in told, told
    assert told.splitlines()[-1] == "good", told


# On a booted machine, which has no disks: STORE stands in for what tells of them and changes them.

IMAGES = """\
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c '%s'
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("nvme"), NO_SOURCES) as made:
        made.put("/usr/local/sbin/store", STORE)
        links = "lsblk wipefs mdadm mkfs.xfs mount"
        made.sh(f"cd /usr/local/sbin; chmod +x store; for name in {links}; do ln -s store $name; done")
        yield made


@pytest.fixture
def machine(node: Booted) -> Iterator[Booted]:
    """With two blank disks, and no service of an image."""
    yield node
    clear(node)
    node.sh("systemctl stop dlami-nvme.service || true; rm -f /etc/systemd/system/dlami*; systemctl daemon-reload")


def clear(node: Booted) -> None:
    node.sh(
        f"for at in {MOUNT_POINT} /opt/dlami/nvme; do ! mountpoint -q $at || umount $at; done; rm -f /var/log/store"
    )


def has(node: Booted, **state: Any) -> None:
    node.put("/etc/store.json", json.dumps({"disks": {A: None, B: None}} | state))


def role(node: Booted, **variables: Any) -> Play:
    return node.role("nvme", **{"nvme_disks": 2} | variables)


def done(node: Booted) -> list[str]:
    """Programs that have changed disks, in their order, with their first words."""
    lines = node.sh("cat /var/log/store || true").splitlines()
    return [" ".join(line.split()[:2]) for line in lines]


@pytest.mark.booted
def test_it_converges_and_a_second_run_changes_nothing(machine: Booted) -> None:
    has(machine)
    first = role(machine)
    assert first.code == 0, first.told
    assert done(machine) == ["mdadm --create", "mkfs.xfs -q"]
    assert machine.sh(f"test -d {MOUNT_POINT}/cache; findmnt -no OPTIONS {MOUNT_POINT}").count("noatime") == 1
    again = role(machine)
    assert (again.code, again.changed) == (0, ()), again.told


@pytest.mark.booted
def test_an_image_without_the_tools_is_given_them(machine: Booted, tmp_path_factory: pytest.TempPathFactory) -> None:
    has(machine)
    machine.sh("dpkg --purge --force-depends mdadm")
    with repository(tmp_path_factory.mktemp("tools"), machine.network) as made:
        made.add(Package(name="mdadm", version="99", files={"/usr/sbin/mdadm": "#!/bin/sh\n"}))
        made.be_source_of(machine)
        play = role(machine)
        machine.sh("rm /etc/apt/sources.list.d/tests.list")
    assert "nvme : Have what it is made with" in play.changed, play.told
    assert "Have what it is made with" not in role(machine).changed


@pytest.mark.booted
def test_a_reboot_keeps_what_is_there_and_a_stop_has_it_made_anew(machine: Booted) -> None:
    member = ["linux_raid_member", "any:trainyard"]
    has(machine)
    assert role(machine).code == 0
    machine.sh("rm /var/log/store")
    boots = machine.machine.boots
    machine.machine.run("systemctl", "reboot")
    eventually(lambda: machine.machine.boots > boots and machine.machine.state() == "running", "the next boot")
    has(machine, disks={A: member, B: member}, kept=["xfs", "trainyard"])
    assert role(machine).code == 0
    assert done(machine) == ["mdadm --assemble"]
    clear(machine)
    has(machine)
    assert role(machine).code == 0
    assert done(machine) == ["mdadm --create", "mkfs.xfs -q"]


@pytest.mark.booted
def test_a_disk_of_others_is_told_and_not_touched(machine: Booted) -> None:
    has(machine, disks={A: None, B: ["LVM2_member", ""]})
    play = role(machine)
    assert play.code == 2
    assert f"{B} holds LVM2_member. It is not this role's" in play.failure
    assert done(machine) == []


@pytest.mark.booted
def test_a_missing_disk_is_told_and_none_is_touched(machine: Booted) -> None:
    has(machine)
    play = role(machine, nvme_disks=3)
    assert play.code == 2
    assert f"the instance store has 2 disks ({A}, {B}), the type has 3" in play.failure
    assert done(machine) == []


@pytest.mark.booted
def test_without_an_instance_store_there_is_nothing_to_do(machine: Booted) -> None:
    has(machine, disks={})
    play = role(machine, nvme_disks=0)
    assert (play.code, play.changed) == (0, ()), play.told
    machine.sh(f"! mountpoint -q {MOUNT_POINT}")


@pytest.mark.booted
def test_what_the_image_makes_is_waited_for_and_taken(machine: Booted) -> None:
    has(machine, disks={A: ["LVM2_member", ""], B: ["LVM2_member", ""]})
    mounts = "sleep 6; mkdir -p /opt/dlami/nvme; /usr/bin/mount -t tmpfs -o size=16m image /opt/dlami/nvme"
    machine.put("/etc/systemd/system/dlami-nvme.service", IMAGES % mounts)
    machine.sh("systemctl daemon-reload; systemctl start --no-block dlami-nvme.service")
    first = role(machine)
    assert first.code == 0, first.told
    assert machine.sh(f"findmnt -no SOURCE {MOUNT_POINT}") == "image\n"
    machine.sh("test -d /opt/dlami/nvme/cache")
    assert done(machine) == []
    again = role(machine)
    assert (again.code, again.changed) == (0, ()), again.told


@pytest.mark.booted
def test_an_image_that_does_not_end_is_told(machine: Booted) -> None:
    has(machine)
    machine.put("/etc/systemd/system/dlami-nvme.service", IMAGES % "sleep 600")
    machine.sh("systemctl daemon-reload; systemctl start --no-block dlami-nvme.service")
    play = role(machine, nvme_wait=1)
    assert play.code == 2
    assert "dlami-nvme.service has not ended within 1 s: look at `journalctl -u dlami-nvme.service`" in play.failure
    assert done(machine) == []


@pytest.mark.booted
def test_an_image_that_makes_nothing_leaves_it_to_the_role(machine: Booted) -> None:
    has(machine)
    machine.put("/etc/systemd/system/dlami-nvme.service", IMAGES % "exit 0")
    machine.sh("systemctl daemon-reload; systemctl start dlami-nvme.service")
    assert role(machine).code == 0
    assert done(machine) == ["mdadm --create", "mkfs.xfs -q"]


@pytest.mark.booted
def test_a_file_system_smaller_than_the_disks_is_told(machine: Booted) -> None:
    has(machine)
    machine.sh(f"mkdir -p {MOUNT_POINT} /opt/dlami/nvme; /usr/bin/mount -t tmpfs -o size=8m image /opt/dlami/nvme")
    play = role(machine)
    assert play.code == 2
    assert "has 8,388,608 bytes, and the disks together 16,777,216" in play.failure
