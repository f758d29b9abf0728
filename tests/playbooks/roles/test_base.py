"""The role `base` on a booted machine."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import ROOT, BootedMachine, boot_machine
from tests.polling import eventually

pytestmark = pytest.mark.booted
OUTAGE_SECONDS = 12.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    with boot_machine(tmp_path_factory.mktemp("base")) as machine:
        yield machine


def test_the_first_run_converges_and_a_second_run_changes_nothing(node: BootedMachine) -> None:
    first = node.run_role("base", base_is_container=True)
    assert first.exit_code == 0, first.output
    assert "base : Write kernel settings, limits and apt settings" in first.changed_tasks
    second = node.run_role("base", base_is_container=True)
    assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


# Debian's unit has such a condition: the service starts only if the kernel allows it to set the clock.
CHRONY = {
    "/lib/systemd/system/chrony.service": "[Unit]\nConditionCapability=CAP_SYS_TIME\n[Service]\nExecStart=/bin/true\n"
    "[Install]\nWantedBy=multi-user.target\n"
}


@pytest.fixture
def node_without_chrony(tmp_path: Path) -> Iterator[tuple[BootedMachine, Repository]]:
    """A machine whose image has no chrony, and the package source that has it."""
    with (
        boot_machine(tmp_path / "node", NO_SOURCES) as machine,
        repository(tmp_path / "packages", machine.network) as source,
    ):
        source.add(Package(name="chrony", version="9.9", files=CHRONY))
        source.add_source_to(machine)
        machine.run_script("dpkg --purge chrony")
        yield machine, source


HOLD_LOCK = "import fcntl, time; lock = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(lock, fcntl.LOCK_EX)"
INSTALL_CHRONY = "base : Install chrony and nftables"


def test_the_role_waits_for_the_dpkg_lock(node_without_chrony: tuple[BootedMachine, Repository]) -> None:
    """The role itself waits before it configures half-installed packages: dpkg does not wait."""
    node, source = node_without_chrony
    source.add(Package(name="driver"))
    node.run_script("cd /root; apt-get update -q; apt-get download -q driver; dpkg --unpack *.deb")
    node.run_script(f'systemd-run -q python3 -c "{HOLD_LOCK}; print(1, flush=True); time.sleep({OUTAGE_SECONDS})"')
    eventually(lambda: "lock-frontend" in node.run_script("lslocks -n -u || true"), "the process that has the lock")
    result = node.run_role("base", base_is_container=True)
    assert (result.exit_code, INSTALL_CHRONY in result.changed_tasks) == (0, True), result.output
    assert node.run_script("dpkg-query -W -f '${db:Status-Abbrev}' driver") == "ii "


def test_an_unavailable_package_source_is_retried(node_without_chrony: tuple[BootedMachine, Repository]) -> None:
    node, source = node_without_chrony
    source.stop()
    restart = threading.Timer(OUTAGE_SECONDS, source.start)
    restart.start()
    result = node.run_role("base", base_is_container=True)
    restart.join()
    assert (result.exit_code, INSTALL_CHRONY in result.changed_tasks) == (0, True), result.output


# The first run of the script does not finish.
BLOCK_ONCE = "#!/bin/sh\n[ -e /etc/blocked ] && exit 0\ntouch /etc/blocked\nexec sleep 600\n"


@pytest.mark.parametrize("script", ["preinst", "postinst"])
def test_an_interrupted_package_installation_is_repaired(
    node_without_chrony: tuple[BootedMachine, Repository], script: str
) -> None:
    node, source = node_without_chrony
    source.add(Package(name="driver", scripts={script: BLOCK_ONCE}))
    node.run_script("apt-get update -q; systemd-run -q --unit=install apt-get install -qy driver")
    blocked = ("test", "-e", "/etc/blocked")
    eventually(lambda: node.machine.run_command(*blocked).returncode == 0, f"the package's {script}")
    node.run_script("systemctl kill --signal=KILL install")
    eventually(lambda: "lock-frontend" not in node.run_script("lslocks -n -u || true"), "the end of dpkg")
    refused = node.machine.run_command("apt-get", "install", "-qy", "chrony")
    assert "dpkg was interrupted, you must manually run 'dpkg --configure -a'" in refused.stderr
    result = node.run_role("base", base_is_container=True)
    assert (result.exit_code, INSTALL_CHRONY in result.changed_tasks) == (0, True), result.output
    assert node.run_script("dpkg-query -W -f '${db:Status-Abbrev}' driver") == "ii "
    assert node.run_role("base", base_is_container=True).changed_tasks == ()


def test_packages_that_cannot_be_repaired_are_reported(node_without_chrony: tuple[BootedMachine, Repository]) -> None:
    node, source = node_without_chrony
    source.add(Package(name="driver", scripts={"postinst": "#!/bin/sh\necho no room for modules >&2\nexit 1\n"}))
    node.run_script("apt-get update -q; ! apt-get install -qy driver")
    result = node.run_role("base", base_is_container=True)
    assert result.exit_code == 2
    assert "Packages are half installed and cannot be repaired: driver." in result.failure
    assert "no room for modules" in result.failure


def test_only_packages_in_the_variable_are_removed(node_without_chrony: tuple[BootedMachine, Repository]) -> None:
    node, source = node_without_chrony
    source.add(Package(name="needrestart"))
    node.run_script("apt-get update -q; apt-get install -qy needrestart")
    assert node.run_role("base", base_is_container=True, base_removed_packages=[]).exit_code == 0
    node.run_script("dpkg-query -W needrestart")
    assert node.run_role("base", base_is_container=True).exit_code == 0
    node.run_script("! dpkg-query -W needrestart")


# With -x chrony does not set the clock, which is the host's, and starts in a container, too.
CHRONY_IN_CONTAINER = {
    "/etc/default/chrony": 'DAEMON_OPTS="-F 1 -x"\n',
    "/etc/systemd/system/chrony.service.d/test.conf": "[Unit]\nConditionCapability=\n",
}
TIME_SERVER = "169.254.169.123"


@pytest.fixture(scope="module")
def node_with_chrony(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    with boot_machine(tmp_path_factory.mktemp("chrony"), CHRONY_IN_CONTAINER) as machine:
        yield machine


def time_sources(node: BootedMachine) -> list[str]:
    return [line.split(",")[2] for line in node.run_script("chronyc -c -n sources").splitlines()]


def test_chrony_uses_amazons_time_server(node_with_chrony: BootedMachine) -> None:
    node_with_chrony.run_script("systemctl disable -q --now chrony")
    assert node_with_chrony.run_role("base", base_is_container=True).exit_code == 0
    assert TIME_SERVER in time_sources(node_with_chrony)
    node_with_chrony.run_script("systemctl is-enabled chrony")
    node_with_chrony.run_script("systemctl restart chrony")  # as at a boot
    assert node_with_chrony.run_role("base", base_is_container=True).changed_tasks == ()
    assert TIME_SERVER in time_sources(node_with_chrony)


def test_a_time_source_of_the_image_is_kept(node_with_chrony: BootedMachine) -> None:
    image_source = "/etc/chrony/conf.d/aws.conf"
    node_with_chrony.run_script(f"rm /etc/chrony/sources.d/*; echo 'server {TIME_SERVER} iburst' > {image_source}")
    node_with_chrony.run_script("systemctl restart chrony")
    assert node_with_chrony.run_role("base", base_is_container=True).changed_tasks == ()
    node_with_chrony.run_script(f"rm {image_source}; systemctl restart chrony; ! ls /etc/chrony/sources.d/*")


def test_a_chrony_configuration_without_source_directory_is_reported(node_with_chrony: BootedMachine) -> None:
    node_with_chrony.run_script("sed -i /sources.d/d /etc/chrony/chrony.conf; systemctl restart chrony")
    result = node_with_chrony.run_role("base", base_is_container=True)
    assert result.exit_code == 2
    assert f"not {TIME_SERVER}: /etc/chrony/chrony.conf needs the line 'sourcedir /etc/chrony/sources.d'" in (
        result.failure
    )


NOFILE = 15000  # lower than the limit that the host of the container allows
KERNEL = "linux-image-cloud-amd64"


@pytest.fixture(scope="module")
def configured_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    folder = tmp_path_factory.mktemp("configured")
    with (
        boot_machine(folder / "node", NO_SOURCES) as node,
        repository(folder / "packages", node.network) as source,
    ):
        source.add(Package(name="needrestart"), Package(name=KERNEL))
        source.add_source_to(node)
        node.run_script(f"apt-get install -qy {KERNEL}")
        assert node.run_role("base", base_is_container=True, base_nofile=NOFILE).exit_code == 0
        yield node


HUGE_PAGES_SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"
SYSTEMD_LIMITS = "/etc/systemd/system.conf.d/60-trainyard.conf"
BY_ROLE = "the role repairs it"


@pytest.mark.parametrize(
    ("kind", "change", "repair", "message"),
    [
        ("container", "sysctl -q -w net.core.somaxconn=77", BY_ROLE, "net.core.somaxconn is 77, not 4096"),
        (
            "container",
            f"sed -i s/{NOFILE}/9000/ {SYSTEMD_LIMITS}; systemctl daemon-reexec",
            BY_ROLE,
            f"a service has a limit of 9000 open files, not {NOFILE}",
        ),
        (
            "machine",
            f"sed -i s/infinity/1M/ {SYSTEMD_LIMITS}; systemctl daemon-reexec",
            BY_ROLE,
            "a service has a limit of 1024 KiB of locked memory, not unlimited",
        ),
        (
            "container",
            f"sed -i '/^root/s/{NOFILE}/8000/' /etc/security/limits.d/*",
            BY_ROLE,
            f"a session of root has a limit of 8000 open files, not {NOFILE}",
        ),
        (
            "container",
            f"sed -i '/^*/s/{NOFILE}/8000/' /etc/security/limits.d/*",
            BY_ROLE,
            f"a session of nobody has a limit of 8000 open files, not {NOFILE}",
        ),
        ("container", "mount -o remount,size=1m /dev/shm", BY_ROLE, "/dev/shm has 1024 KiB, not "),
        ("container", f"apt-mark unhold {KERNEL}", BY_ROLE, f"{KERNEL} is not held"),
        ("container", "apt-get install -qy needrestart", BY_ROLE, "needrestart is installed: it restarts services"),
        (
            "container",
            "echo 'APT::Periodic::Enable \"1\";' > /etc/apt/apt.conf.d/99-image",
            "rm /etc/apt/apt.conf.d/99-image",
            "automatic upgrades are on: APT::Periodic::Enable is '1'",
        ),
        (
            "machine",
            f"echo 'always madvise [never]' > /root/never; mount --bind /root/never {HUGE_PAGES_SETTING}",
            f"umount {HUGE_PAGES_SETTING}",
            "transparent huge pages are never, not madvise",
        ),
        ("machine", "true", "true", "0 huge pages are reserved, not 1000000"),
        ("machine", "true", "true", "chrony, which synchronizes the clock, is inactive"),
    ],
)
def test_the_verification_reports_a_changed_setting(
    configured_node: BootedMachine, kind: str, change: str, repair: str, message: str
) -> None:
    def verify(kind: str, huge_pages: int = 0) -> str:
        arguments = (kind, str(NOFILE), "80", str(huge_pages), TIME_SERVER, "needrestart", KERNEL)
        script = f"{ROOT}/playbooks/roles/base/files/verify.sh"
        return configured_node.machine.run_command("/bin/sh", script, *arguments).stderr

    configured_node.run_script(change)
    assert message in verify(kind, 1000000)
    if repair == BY_ROLE:
        assert configured_node.run_role("base", base_is_container=True, base_nofile=NOFILE).exit_code == 0
    else:
        configured_node.run_script(repair)
    assert verify("container") == ""
