"""The role `lustre` on a booted machine with the os-release file of Ubuntu, and a client that mounts a tmpfs."""

import importlib.util
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import ROOT, BootedMachine, boot_machine
from tests.playbooks.roles.amazon import KERNEL, LUSTRE_CLIENT
from tests.polling import eventually

FILES = ROOT / "playbooks/roles/lustre/files"
MOUNT_POINT = "/fsx-data"
UNIT = "fsx\\x2ddata"  # as systemd-escape prints it
MOUNT_TASKS = (
    "lustre : Write the systemd units of the mount",
    "lustre : Enable the client tuning for each mount",
    "lustre : Mount FSx for Lustre on first use",
)
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


def load_script(name: str) -> ModuleType:
    """Import a Python script of the role."""
    spec = importlib.util.spec_from_file_location(f"lustre_{name}", FILES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_automount_is_not_a_mounted_file_system() -> None:
    source = load_script("verify").mounted_source
    mounts = f"systemd-1 {MOUNT_POINT} autofs rw 0 0\n"
    assert source(MOUNT_POINT, mounts) == ""
    assert source(MOUNT_POINT, f"{mounts}10.0.0.7@tcp:/abc {MOUNT_POINT} lustre rw 0 0\n") == "10.0.0.7@tcp:/abc"


def test_modules_loaded_before_their_parameters_were_set_are_reported(tmp_path: Path) -> None:
    settings, parameter = tmp_path / "conf", tmp_path / "ptlrpc/parameters/ptlrpcd_per_cpt_max"
    settings.write_text("options ptlrpc ptlrpcd_per_cpt_max=32\noptions ksocklnd credits=2560\n")
    assert load_script("verify").module_problem(settings, tmp_path) == ""  # not loaded
    parameter.parent.mkdir(parents=True)
    parameter.write_text("32\n")
    assert load_script("verify").module_problem(settings, tmp_path) == ""
    parameter.write_text("2\n")
    assert "ptlrpcd_per_cpt_max is 2, not 32: reboot the node" in load_script("verify").module_problem(
        settings, tmp_path
    )


def configure_modules(folder: Path, *, value: str, mounts: str = "", unload: int = 0) -> str:
    """Return the reason of the requested reboot on a machine with 96 vCPUs; empty for none.

    `value`: parameter of the loaded module; `unload`: exit status of lustre_rmmod.
    """
    for name, text in {"nproc": "echo 96", "lustre_rmmod": f"exit {unload}"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "loaded").write_text(value)
    (folder / "mounts").write_text(mounts)
    arguments = [folder / name for name in ("reason", "settings", "loaded", "mounts")]
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", FILES / "configure-modules.sh", *arguments], check=True, env=path)
    return arguments[0].read_text() if arguments[0].exists() else ""


def test_modules_in_use_with_other_parameters_request_a_reboot(tmp_path: Path) -> None:
    assert configure_modules(tmp_path, value="32\n", mounts="a /b lustre rw 0 0\n") == ""
    assert configure_modules(tmp_path, value="2\n") == ""
    assert "are in use" in configure_modules(tmp_path, value="2\n", mounts="a /b lustre rw 0 0\n")
    (tmp_path / "reason").unlink()
    assert "are in use" in configure_modules(tmp_path, value="2\n", unload=1)


def configure_efa(
    folder: Path, interfaces: int, devices: int, *, loads: bool = True
) -> subprocess.CompletedProcess[str]:
    """Configure EFA on a node with `devices` EFA devices and one of another driver. `loads`: LNet adds interfaces."""
    for number in range(devices + 1):
        driver = folder / "drivers" / ("efa" if number else "other")
        driver.mkdir(parents=True, exist_ok=True)
        device = folder / f"devices/rdma{number:02}/device"
        if not device.exists():
            device.mkdir(parents=True)
            (device / "driver").symlink_to(driver)
    added = f'echo "nid: 10.0.0.7@efa $6" >> {folder}/added' if loads else "true"
    programs = {
        "ip": "echo 'default via 10.0.0.1 dev ens5 proto dhcp src 10.0.0.7'",
        "modprobe": f'echo "modprobe $*" >> {folder}/calls',
        "lnetctl": f"""case "$*" in
  "net show"*) cat {folder}/added 2>/dev/null;;
  "net add --net efa"*) {added};;
  *) echo "lnetctl $*" >> {folder}/calls;;
esac""",
    }
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    arguments = ["/bin/sh", str(FILES / "configure-efa.sh"), str(interfaces), str(folder / "devices")]
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run(arguments, capture_output=True, text=True, check=False, env=path)


@pytest.mark.parametrize(
    ("interfaces", "devices", "expected"),
    [(8, 32, range(1, 33, 4)), (8, 16, range(1, 17, 2)), (2, 4, (1, 3)), (8, 8, range(1, 9)), (2, 1, (1,))],
)
def test_the_client_uses_efa_interfaces_distributed_over_the_node(
    interfaces: int, devices: int, expected: range | tuple[int, ...], tmp_path: Path
) -> None:
    result = configure_efa(tmp_path, interfaces, devices)
    assert result.returncode == 0, result.stderr
    added = [line.split()[-1] for line in (tmp_path / "added").read_text().splitlines()]
    assert added == [f"rdma{number:02}" for number in expected]


def test_efa_is_configured_once_and_preferred_to_tcp(tmp_path: Path) -> None:
    configure_efa(tmp_path, 2, 4)
    calls = (tmp_path / "calls").read_text()
    assert "modprobe kefalnd ipif_name=ens5\n" in calls
    assert "lnetctl net add --net tcp --if ens5\n" in calls
    assert "lnetctl udsp add --src efa --priority 0\n" in calls
    assert configure_efa(tmp_path, 2, 4).returncode == 0
    assert (tmp_path / "calls").read_text() == calls


def test_a_client_without_efa_interfaces_is_reported(tmp_path: Path) -> None:
    result = configure_efa(tmp_path, 2, 4, loads=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert "LNet has 0 of 2 EFA interfaces" in result.stderr
    assert "has no EFA device" in configure_efa(tmp_path / "none", 2, 0).stderr


def test_a_mount_is_tuned_only_by_a_later_run_of_the_service() -> None:
    state = load_script("verify").tuning_state
    assert state("ActiveState=inactive\nExecMainExitTimestampMonotonic=7\n", 5) == "done"
    assert state("ActiveState=inactive\nExecMainExitTimestampMonotonic=4\n", 5) == "pending"
    assert state("ActiveState=activating\nExecMainExitTimestampMonotonic=0\n", 5) == "pending"
    assert state("ActiveState=failed\nExecMainExitTimestampMonotonic=7\n", 5) == "failed"


def test_a_blocked_probe_is_abandoned_at_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fifo = tmp_path / "pipe"
    module = load_script("verify")
    os.mkfifo(fifo)
    monkeypatch.setattr(module, "PROBE", "import sys; open(sys.argv[1]).read()")  # blocks, because no process writes
    assert module.probe_problem(str(fifo), 0.5) == "no response within 0 s"


def test_an_object_that_is_not_imported_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_script("verify")
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    assert f"FSx has not imported {tmp_path}/dataset.json within 0 s" in module.import_problem(
        f"{tmp_path}/dataset.json", 0.05
    )
    (tmp_path / "dataset.json").touch()
    assert module.import_problem(f"{tmp_path}/dataset.json", 0.05) == ""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    with boot_machine(tmp_path_factory.mktemp("lustre"), NO_SOURCES | {"/etc/os-release": UBUNTU}) as machine:
        allow_automounts(machine)
        yield machine


def allow_automounts(node: BootedMachine) -> None:
    """Create /dev/autofs, which a container does not have and systemd opens only at its start."""
    for folder in node.machine.cgroup.folders:
        for allowed in sorted(folder.rglob("devices.allow"), key=lambda path: len(path.parts)):
            allowed.write_text("c 10:235 rwm")
    node.run_script("mknod /dev/autofs c 10 235; systemctl daemon-reexec")


@pytest.fixture
def machine(node: BootedMachine) -> Iterator[BootedMachine]:
    """The machine; after the test everything that the role has created is removed."""
    yield node
    node.run_script(
        f"systemctl disable -q --now '{UNIT}.automount' '{UNIT}.mount' trainyard-lustre-tuning.service || true;"
        "rm -f /etc/systemd/system/fsx* /etc/systemd/system/trainyard* /etc/modprobe.d/60* /usr/local/sbin/nproc;"
        "apt-get purge -qy 'lustre-client-*' || true; rm -f /etc/apt/sources.list.d/* /etc/apt/keyrings/* /etc/fsx-*;"
        "rm -f /var/log/mounts /var/log/lctl /var/log/loaded; systemctl daemon-reload;"
        "apt-get purge -qy 'linux-image-6.8*' 'linux-headers-6.8*' || true;"
        "rm -rf /etc/default/grub.d /boot/grub /usr/local/sbin/update-grub /var/lib/trainyard /run/trainyard"
    )


@pytest.fixture(scope="module")
def source(node: BootedMachine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with repository(tmp_path_factory.mktemp("source"), node.network, "noble") as source:
        source.add(*LUSTRE_CLIENT)
        yield source


def variables(source: Repository, **overrides: Any) -> dict[str, Any]:
    return {
        "lustre_dns_name": "fs-1.fsx.us-east-1.amazonaws.com",
        "lustre_mount_name": "abc",
        "lustre_mount_point": MOUNT_POINT,
        "lustre_repository": source.url,
        "lustre_repository_key": source.key_url,
        "lustre_repository_fingerprint": source.fingerprint,
        "lustre_ready_timeout_seconds": 20,
    } | overrides


def set_96_vcpus(node: BootedMachine) -> None:
    node.run_script("printf '#!/bin/sh\\necho 96\\n' > /usr/local/sbin/nproc; chmod +x /usr/local/sbin/nproc")


def unmount(node: BootedMachine) -> None:
    node.run_script(f"umount {MOUNT_POINT}")
    state = ("systemctl", "is-active", f"{UNIT}.mount")
    eventually(lambda: node.machine.run_command(*state).stdout == "inactive\n", "the end of the mount")


@pytest.mark.booted
def test_the_file_system_is_mounted_and_a_second_run_changes_nothing(
    machine: BootedMachine, source: Repository
) -> None:
    first = machine.run_role("lustre", **variables(source))
    assert first.exit_code == 0, first.output
    assert machine.run_script(f"findmnt -no SOURCE {MOUNT_POINT}").split() == [
        "systemd-1",
        "fs-1.fsx.us-east-1.amazonaws.com@tcp:/abc",
    ]
    assert machine.run_script("cat /var/log/mounts").split()[-2:] == ["-o", "rw,noatime,flock,_netdev"]
    assert machine.run_script(f"ls -A {MOUNT_POINT}") == ""
    machine.run_script("test ! -e /etc/modprobe.d/60-trainyard-lustre.conf; test ! -e /var/log/lctl")
    second = machine.run_role("lustre", **variables(source))
    assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


@pytest.mark.booted
def test_on_many_vcpus_modules_are_configured_before_loading_and_each_mount_is_tuned(
    machine: BootedMachine, source: Repository
) -> None:
    set_96_vcpus(machine)
    assert machine.run_role("lustre", **variables(source)).exit_code == 0
    options = machine.run_script("cat /var/log/loaded").splitlines()
    assert options == ["options ptlrpc ptlrpcd_per_cpt_max=32", "options ksocklnd credits=2560"]
    settings = "set_param osc.*OST*.max_rpcs_in_flight=32 mdc.*.max_rpcs_in_flight=64"
    assert settings in machine.run_script("cat /var/log/lctl")
    unmount(machine)
    machine.run_script(f"rm /var/log/lctl; ls {MOUNT_POINT}/")
    eventually(lambda: settings in machine.run_script("cat /var/log/lctl || true"), "the tuning of the next mount")


@pytest.mark.booted
def test_failed_tuning_is_reported(machine: BootedMachine, source: Repository) -> None:
    set_96_vcpus(machine)
    assert machine.run_role("lustre", **variables(source)).exit_code == 0
    machine.run_script("printf '#!/bin/sh\\necho no such parameter >&2; exit 2\\n' > /usr/sbin/lctl")
    unmount(machine)
    result = machine.run_role("lustre", **variables(source))
    assert result.exit_code == 2
    assert "trainyard-lustre-tuning.service has not tuned the mount: no such parameter" in result.failure


@pytest.mark.booted
def test_a_temporarily_unavailable_file_system_is_retried(machine: BootedMachine, source: Repository) -> None:
    machine.write_file("/etc/fsx-failures", "1\n2\n3\n")
    result = machine.run_role("lustre", **variables(source, lustre_ready_timeout_seconds=240))
    assert result.exit_code == 0, result.output
    assert len(machine.run_script("cat /var/log/mounts").splitlines()) == 4


@pytest.mark.booted
def test_an_unavailable_file_system_is_reported_at_the_timeout(machine: BootedMachine, source: Repository) -> None:
    machine.write_file("/etc/fsx-failures", "1\n" * 1000)
    result = machine.run_role("lustre", **variables(source, lustre_ready_timeout_seconds=5))
    assert result.exit_code == 2
    assert f"{MOUNT_POINT} cannot be mounted: " in result.failure
    assert (
        "failed: Connection timed out; its name must resolve, and TCP 988 and 1018-1023 must be open" in result.failure
    )
    # systemd has no limit of failed attempts.
    machine.run_script(
        f"for number in $(seq 12); do ! ls {MOUNT_POINT}/; done; rm /etc/fsx-failures; ls {MOUNT_POINT}/"
    )
    assert machine.run_script(f"findmnt -no SOURCE {MOUNT_POINT}").split()[-1].endswith(":/abc")


@pytest.mark.booted
def test_a_read_only_file_system_is_reported(machine: BootedMachine, source: Repository) -> None:
    machine.write_file("/etc/fsx-options", ",ro")
    result = machine.run_role("lustre", **variables(source, lustre_ready_timeout_seconds=1))
    assert result.exit_code == 2
    assert "is not writable: [Errno 30] Read-only file system" in result.failure


@pytest.mark.booted
def test_a_changed_file_system_replaces_the_mounted_one(machine: BootedMachine, source: Repository) -> None:
    assert machine.run_role("lustre", **variables(source)).exit_code == 0
    assert machine.run_role("lustre", **variables(source, lustre_mount_name="xyz")).exit_code == 0
    assert machine.run_script(f"findmnt -no SOURCE {MOUNT_POINT}").split()[-1].endswith(":/xyz")


@pytest.mark.booted
def test_units_changed_or_disabled_since_are_repaired(machine: BootedMachine, source: Repository) -> None:
    assert machine.run_role("lustre", **variables(source)).exit_code == 0
    machine.run_script(
        f"systemctl disable -q --now '{UNIT}.automount'; systemctl disable -q trainyard-lustre-tuning.service;"
        f"systemctl stop '{UNIT}.mount'; sed -i s/flock/localflock/ '/etc/systemd/system/{UNIT}.mount'"
    )
    result = machine.run_role("lustre", **variables(source))
    assert (result.exit_code, result.changed_tasks) == (0, MOUNT_TASKS), result.output
    assert machine.run_script("tail -n 1 /var/log/mounts").split()[-1] == "rw,noatime,flock,_netdev"
    machine.run_script(f"systemctl is-enabled '{UNIT}.automount' trainyard-lustre-tuning.service")


@pytest.mark.booted
def test_a_kernel_without_a_client_is_reported(
    machine: BootedMachine, source: Repository, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kernels = ["6.8.0-1018-aws", "6.8.0-999-aws", "6.8.0-1021-aws"]
    with repository(tmp_path_factory.mktemp("other"), machine.network, "noble") as source_without_kernel:
        source_without_kernel.add(*[Package(name=f"lustre-client-modules-{kernel}") for kernel in kernels])
        result = machine.run_role("lustre", **variables(source_without_kernel))
    assert result.exit_code == 2
    assert f"AWS has no Lustre client for the running kernel {KERNEL}, and the distribution has none" in result.failure
    assert "the newest are 6.8.0-999-aws, 6.8.0-1018-aws, 6.8.0-1021-aws. Use an image" in result.failure


# Writes one menu entry for each installed stand-in of a kernel.
UPDATE_GRUB = """\
#!/bin/sh
mkdir -p /boot/grub
dpkg-query -W -f '${Package}\\n' 'linux-image-6.8*' |
  sed "s/linux-image-\\(.*\\)/  menuentry 'Ubuntu, with Linux \\1' {/" > /boot/grub/grub.cfg
"""


def with_kernels(source: Repository, *kernels: str) -> None:
    """Add Lustre clients for the kernels, and each of these kernels except the newest."""
    source.add(*[Package(name=f"lustre-client-modules-{kernel}") for kernel in kernels])
    for kernel in kernels[:-1]:
        source.add(Package(name=f"linux-image-{kernel}"), Package(name=f"linux-headers-{kernel}"))


@pytest.mark.booted
def test_a_kernel_without_a_client_is_replaced_by_one_reboot(
    machine: BootedMachine, source: Repository, tmp_path_factory: pytest.TempPathFactory
) -> None:
    flavor = KERNEL.rsplit("-", 1)[-1]
    newest, request = f"6.8.0-1018-{flavor}", "/run/trainyard/reboot-required"
    machine.write_file("/usr/local/sbin/update-grub", UPDATE_GRUB)
    machine.run_script("chmod +x /usr/local/sbin/update-grub")
    with repository(tmp_path_factory.mktemp("kernels"), machine.network, "noble") as kernels:
        with_kernels(kernels, f"6.8.0-999-{flavor}", newest, "6.8.0-1021-other", f"6.8.0-1030-{flavor}")
        first = machine.run_role("lustre", **variables(kernels))
        assert first.exit_code == 0, first.output
        reason = f"lustre: the kernel {KERNEL} has no Lustre client, and {newest} has one\n"
        assert machine.run_script(f"cat {request}") == reason
        assert machine.run_script("cat /etc/default/grub.d/99-trainyard-lustre.cfg") == (
            f"GRUB_DEFAULT='Advanced options for Ubuntu>Ubuntu, with Linux {newest}'\n"
        )
        machine.run_script(f"dpkg -s linux-headers-{newest} > /dev/null; ! command -v mount.lustre; ! test -e /etc/fsx")
        again = machine.run_role("lustre", **variables(kernels))  # an interrupted run, without the reboot
        assert (again.exit_code, again.changed_tasks) == (0, ()), again.output
        machine.run_script("sed -i s/^[^-]*/00000000/ /var/lib/trainyard/lustre-reboot")  # another boot
        after_reboot = machine.run_role("lustre", **variables(kernels))
    assert after_reboot.exit_code == 2
    assert f"The node was rebooted into the kernel {newest}, which has a Lustre client, and it runs {KERNEL}" in (
        after_reboot.failure
    )


@pytest.mark.booted
def test_a_source_signed_by_another_key_is_refused(machine: BootedMachine, source: Repository) -> None:
    result = machine.run_role("lustre", **variables(source, lustre_repository_fingerprint="A" * 40))
    assert result.exit_code == 2
    assert f"not the key {'A' * 40}" in result.failure
    machine.run_script("! command -v mount.lustre")


@pytest.mark.booted
def test_a_distribution_without_a_client_is_reported(machine: BootedMachine, source: Repository) -> None:
    machine.run_script("mv /etc/os-release /etc/os-release.original; cp /usr/lib/os-release /etc/os-release")
    try:
        result = machine.run_role("lustre", **variables(source))
    finally:
        machine.run_script("mv /etc/os-release.original /etc/os-release")
    assert result.exit_code == 2
    assert "FSx for Lustre has no client packages for Debian: use an image of Ubuntu" in result.failure
