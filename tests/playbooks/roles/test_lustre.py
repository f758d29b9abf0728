"""The role `lustre` on a booted machine that calls itself Ubuntu, with a client that mounts a tmpfs."""

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import ROOT, Booted, booted
from tests.playbooks.roles.amazon import KERNEL, LUSTRE_CLIENT
from tests.polling import eventually

FILES = ROOT / "playbooks/roles/lustre/files"
MOUNT_POINT = "/fsx-data"
UNIT = "fsx\\x2ddata"  # as systemd escapes it
UBUNTU = """\
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.2 LTS (Noble Numbat)"
VERSION_CODENAME=noble
UBUNTU_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
PRETTY_NAME="Ubuntu 24.04.2 LTS"
"""


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"lustre_{name}", FILES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_automount_itself_is_no_file_system() -> None:
    source = loaded("verify").source_of
    mounts = f"systemd-1 {MOUNT_POINT} autofs rw 0 0\n"
    assert source(MOUNT_POINT, mounts) == ""
    assert source(MOUNT_POINT, f"{mounts}10.0.0.7@tcp:/abc {MOUNT_POINT} lustre rw 0 0\n") == "10.0.0.7@tcp:/abc"


def test_modules_that_were_loaded_before_their_settings_are_told(tmp_path: Path) -> None:
    settings, seen = tmp_path / "conf", tmp_path / "ptlrpc/parameters/ptlrpcd_per_cpt_max"
    settings.write_text("options ptlrpc ptlrpcd_per_cpt_max=32\noptions ksocklnd credits=2560\n")
    assert loaded("verify").module_problem(settings, tmp_path) == ""  # none is loaded
    seen.parent.mkdir(parents=True)
    seen.write_text("32\n")
    assert loaded("verify").module_problem(settings, tmp_path) == ""
    seen.write_text("2\n")
    assert "ptlrpcd_per_cpt_max is 2, not 32: reboot the node" in loaded("verify").module_problem(settings, tmp_path)


def tune_modules(folder: Path, *, value: str, mounts: str = "", unload: int = 0) -> str:
    """Why a machine of 96 vCPUs is to be started again whose modules were loaded with another value; empty for none."""
    for name, text in {"nproc": "echo 96", "lustre_rmmod": f"exit {unload}"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "loaded").write_text(value)
    (folder / "mounts").write_text(mounts)
    words = [folder / name for name in ("reason", "settings", "loaded", "mounts")]
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", FILES / "tune-modules.sh", *words], check=True, env=path)
    return words[0].read_text() if words[0].exists() else ""


def test_modules_in_use_that_were_loaded_before_their_settings_ask_for_a_reboot(tmp_path: Path) -> None:
    assert tune_modules(tmp_path, value="32\n", mounts="a /b lustre rw 0 0\n") == ""
    assert tune_modules(tmp_path, value="2\n") == ""
    assert "are in use" in tune_modules(tmp_path, value="2\n", mounts="a /b lustre rw 0 0\n")
    (tmp_path / "reason").unlink()
    assert "are in use" in tune_modules(tmp_path, value="2\n", unload=1)


def test_a_mount_is_tuned_by_what_ran_after_it_began() -> None:
    tuned = loaded("verify").tuned_since
    assert tuned("ActiveState=inactive\nExecMainExitTimestampMonotonic=7\n", 5) == "yes"
    assert tuned("ActiveState=inactive\nExecMainExitTimestampMonotonic=4\n", 5) == "no"
    assert tuned("ActiveState=activating\nExecMainExitTimestampMonotonic=0\n", 5) == "no"
    assert tuned("ActiveState=failed\nExecMainExitTimestampMonotonic=7\n", 5) == "failed"


def test_who_gets_no_answer_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "pipe"
    module = loaded("verify")
    os.mkfifo(fifo)
    monkeypatch.setattr(module, "PROBE", "import sys; open(sys.argv[1]).read()")  # nobody writes
    assert module.probe(str(fifo), 0.5) == "no answer within 0 s"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("lustre"), NO_SOURCES | {"/etc/os-release": UBUNTU}) as made:
        allow_automounts(made)
        yield made


def allow_automounts(node: Booted) -> None:
    """A container has no /dev/autofs, and systemd looks for it once."""
    for folder in node.machine.cgroup.folders:
        for allowed in sorted(folder.rglob("devices.allow"), key=lambda path: len(path.parts)):
            allowed.write_text("c 10:235 rwm")
    node.sh("mknod /dev/autofs c 10 235; systemctl daemon-reexec")


@pytest.fixture
def machine(node: Booted) -> Iterator[Booted]:
    """As if it had never seen the role."""
    yield node
    node.sh(
        f"systemctl disable -q --now '{UNIT}.automount' '{UNIT}.mount' trainyard-lustre-tuning.service || true;"
        "rm -f /etc/systemd/system/fsx* /etc/systemd/system/trainyard* /etc/modprobe.d/60* /usr/local/sbin/nproc;"
        "apt-get purge -qy 'lustre-client-*' || true; rm -f /etc/apt/sources.list.d/* /etc/apt/keyrings/* /etc/fsx-*;"
        "rm -f /var/log/mounts /var/log/lctl /var/log/loaded; systemctl daemon-reload"
    )


@pytest.fixture(scope="module")
def source(node: Booted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with repository(tmp_path_factory.mktemp("source"), node.network, "noble") as made:
        made.add(*LUSTRE_CLIENT)
        yield made


def variables(source: Repository, **others: Any) -> dict[str, Any]:
    return {
        "lustre_dns_name": "fs-1.fsx.us-east-1.amazonaws.com",
        "lustre_mount_name": "abc",
        "lustre_mount_point": MOUNT_POINT,
        "lustre_source": source.url,
        "lustre_key": source.key_url,
        "lustre_key_fingerprint": source.fingerprint,
        "lustre_wait": 20,
    } | others


def large(node: Booted) -> None:
    node.sh("printf '#!/bin/sh\\necho 96\\n' > /usr/local/sbin/nproc; chmod +x /usr/local/sbin/nproc")


def unmount(node: Booted) -> None:
    node.sh(f"umount {MOUNT_POINT}")
    ended = ("systemctl", "is-active", f"{UNIT}.mount")
    eventually(lambda: node.machine.run(*ended).stdout == "inactive\n", "the end of the mount")


@pytest.mark.booted
def test_it_mounts_when_used_and_a_second_run_changes_nothing(machine: Booted, source: Repository) -> None:
    first = machine.role("lustre", **variables(source))
    assert first.code == 0, first.told
    assert machine.sh(f"findmnt -no SOURCE {MOUNT_POINT}").split() == [
        "systemd-1",
        "fs-1.fsx.us-east-1.amazonaws.com@tcp:/abc",
    ]
    assert machine.sh("cat /var/log/mounts").split()[-2:] == ["-o", "rw,noatime,flock,_netdev"]
    assert machine.sh(f"ls -A {MOUNT_POINT}") == ""
    machine.sh("test ! -e /etc/modprobe.d/60-trainyard-lustre.conf; test ! -e /var/log/lctl")
    again = machine.role("lustre", **variables(source))
    assert (again.code, again.changed) == (0, ()), again.told


@pytest.mark.booted
def test_on_many_processors_modules_are_tuned_before_and_each_mount_after(machine: Booted, source: Repository) -> None:
    large(machine)
    assert machine.role("lustre", **variables(source)).code == 0
    seen = machine.sh("cat /var/log/loaded").splitlines()
    assert seen == ["options ptlrpc ptlrpcd_per_cpt_max=32", "options ksocklnd credits=2560"]
    settings = "set_param osc.*OST*.max_rpcs_in_flight=32 mdc.*.max_rpcs_in_flight=64"
    assert settings in machine.sh("cat /var/log/lctl")
    unmount(machine)
    machine.sh(f"rm /var/log/lctl; ls {MOUNT_POINT}/")
    eventually(lambda: settings in machine.sh("cat /var/log/lctl || true"), "the tuning of the next mount")


@pytest.mark.booted
def test_a_tuning_that_fails_is_told(machine: Booted, source: Repository) -> None:
    large(machine)
    assert machine.role("lustre", **variables(source)).code == 0
    machine.sh("printf '#!/bin/sh\\necho no such parameter >&2; exit 2\\n' > /usr/sbin/lctl")
    unmount(machine)
    play = machine.role("lustre", **variables(source))
    assert play.code == 2
    assert "trainyard-lustre-tuning.service has not tuned the mount: no such parameter" in play.failure


@pytest.mark.booted
def test_a_file_system_that_is_away_for_a_while_is_tried_again(machine: Booted, source: Repository) -> None:
    machine.put("/etc/fsx-away", "1\n2\n3\n")
    play = machine.role("lustre", **variables(source, lustre_wait=240))
    assert play.code == 0, play.told
    assert len(machine.sh("cat /var/log/mounts").splitlines()) == 4


@pytest.mark.booted
def test_a_file_system_that_stays_away_is_told_in_time(machine: Booted, source: Repository) -> None:
    machine.put("/etc/fsx-away", "1\n" * 1000)
    play = machine.role("lustre", **variables(source, lustre_wait=5))
    assert play.code == 2
    assert f"{MOUNT_POINT} can't be mounted: " in play.failure
    assert "failed: Connection timed out; its name must resolve, and TCP 988 and 1018-1023 be open" in play.failure
    # However often it was tried in vain, systemd does not give up on it.
    machine.sh(f"for number in $(seq 12); do ! ls {MOUNT_POINT}/; done; rm /etc/fsx-away; ls {MOUNT_POINT}/")
    assert machine.sh(f"findmnt -no SOURCE {MOUNT_POINT}").split()[-1].endswith(":/abc")


@pytest.mark.booted
def test_a_file_system_that_takes_no_file_is_told(machine: Booted, source: Repository) -> None:
    machine.put("/etc/fsx-options", ",ro")
    play = machine.role("lustre", **variables(source, lustre_wait=1))
    assert play.code == 2
    assert "takes no file: [Errno 30] Read-only file system" in play.failure


@pytest.mark.booted
def test_another_file_system_takes_the_mounts_place(machine: Booted, source: Repository) -> None:
    assert machine.role("lustre", **variables(source)).code == 0
    assert machine.role("lustre", **variables(source, lustre_mount_name="xyz")).code == 0
    assert machine.sh(f"findmnt -no SOURCE {MOUNT_POINT}").split()[-1].endswith(":/xyz")


@pytest.mark.booted
def test_what_an_earlier_play_has_left_half_done_is_mended(machine: Booted, source: Repository) -> None:
    assert machine.role("lustre", **variables(source)).code == 0
    machine.sh(
        f"systemctl disable -q --now '{UNIT}.automount'; systemctl disable -q trainyard-lustre-tuning.service;"
        f"systemctl stop '{UNIT}.mount'; sed -i s/flock/localflock/ '/etc/systemd/system/{UNIT}.mount'"
    )
    play = machine.role("lustre", **variables(source))
    assert (play.code, play.changed) == (0, ("lustre : Have it mounted when first used",)), play.told
    assert machine.sh("tail -n 1 /var/log/mounts").split()[-1] == "rw,noatime,flock,_netdev"
    machine.sh(f"systemctl is-enabled '{UNIT}.automount' trainyard-lustre-tuning.service")


@pytest.mark.booted
def test_a_kernel_without_a_client_is_told(
    machine: Booted, source: Repository, tmp_path_factory: pytest.TempPathFactory
) -> None:
    others = ["6.8.0-1018-aws", "6.8.0-999-aws", "6.8.0-1021-aws"]
    with repository(tmp_path_factory.mktemp("others"), machine.network, "noble") as made:
        made.add(*[Package(name=f"lustre-client-modules-{kernel}") for kernel in others])
        play = machine.role("lustre", **variables(made))
    assert play.code == 2
    told = f"AWS has no Lustre client for the running kernel {KERNEL}; the newest kernels that it has one for are"
    assert f"{told} 6.8.0-999-aws, 6.8.0-1018-aws, 6.8.0-1021-aws. Take an image" in play.failure


@pytest.mark.booted
def test_a_source_signed_by_another_key_is_refused(machine: Booted, source: Repository) -> None:
    play = machine.role("lustre", **variables(source, lustre_key_fingerprint="A" * 40))
    assert play.code == 2
    assert f"not the key {'A' * 40}" in play.failure
    machine.sh("! command -v mount.lustre")


@pytest.mark.booted
def test_a_distribution_without_a_client_is_told(machine: Booted, source: Repository) -> None:
    machine.sh("mv /etc/os-release /etc/os-release.kept; cp /usr/lib/os-release /etc/os-release")
    try:
        play = machine.role("lustre", **variables(source))
    finally:
        machine.sh("mv /etc/os-release.kept /etc/os-release")
    assert play.code == 2
    assert "FSx for Lustre has no client packages for Debian: take an image of Ubuntu" in play.failure
