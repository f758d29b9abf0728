"""The role `base` on a booted machine."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import ROOT, Booted, booted
from tests.polling import eventually

pytestmark = pytest.mark.booted
AWAY_SECONDS = 12.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("base")) as made:
        yield made


def test_it_converges_and_a_second_run_changes_nothing(node: Booted) -> None:
    first = node.role("base", base_container=True)
    assert first.code == 0, first.told
    assert "base : Write limits, kernel settings, and what apt shall bear" in first.changed
    again = node.role("base", base_container=True)
    assert (again.code, again.changed) == (0, ()), again.told


# Of another's kernel, as Debian's: it starts only where the clock may be set.
CHRONY = {
    "/lib/systemd/system/chrony.service": "[Unit]\nConditionCapability=CAP_SYS_TIME\n[Service]\nExecStart=/bin/true\n"
    "[Install]\nWantedBy=multi-user.target\n"
}


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[tuple[Booted, Repository]]:
    """A machine whose image brings no chrony, and the source that has one."""
    with booted(tmp_path / "node", NO_SOURCES) as made, repository(tmp_path / "packages", made.network) as source:
        source.add(Package(name="chrony", version="9.9", files=CHRONY))
        source.be_source_of(made)
        made.sh("dpkg --purge chrony")
        yield made, source


HOLD = "import fcntl, time; lock = open('/var/lib/dpkg/lock-frontend', 'w'); fcntl.lockf(lock, fcntl.LOCK_EX)"
CLOCK = "base : Have the clock kept"


def test_a_lock_that_another_holds_is_waited_for(bare: tuple[Booted, Repository]) -> None:
    """Also by dpkg itself, which takes up what is half installed, and does not wait."""
    node, source = bare
    source.add(Package(name="driver"))
    node.sh("cd /root; apt-get update -q; apt-get download -q driver; dpkg --unpack *.deb")
    node.sh(f'systemd-run -q python3 -c "{HOLD}; print(1, flush=True); time.sleep({AWAY_SECONDS})"')
    eventually(lambda: "lock-frontend" in node.sh("lslocks -n -u || true"), "the lock's holder")
    play = node.role("base", base_container=True)
    assert (play.code, CLOCK in play.changed) == (0, True), play.told
    assert node.sh("dpkg-query -W -f '${db:Status-Abbrev}' driver") == "ii "


def test_a_registry_that_is_away_is_asked_again(bare: tuple[Booted, Repository]) -> None:
    node, source = bare
    source.away()
    back = threading.Timer(AWAY_SECONDS, source.back)
    back.start()
    play = node.role("base", base_container=True)
    back.join()
    assert (play.code, CLOCK in play.changed) == (0, True), play.told


# The first time that it runs it does not end.
CUT = "#!/bin/sh\n[ -e /etc/cut ] && exit 0\ntouch /etc/cut\nexec sleep 600\n"


@pytest.mark.parametrize("script", ["preinst", "postinst"])
def test_packages_that_a_run_was_killed_in_are_taken_up(bare: tuple[Booted, Repository], script: str) -> None:
    node, source = bare
    source.add(Package(name="driver", scripts={script: CUT}))
    node.sh("apt-get update -q; systemd-run -q --unit=cut apt-get install -qy driver")
    eventually(lambda: node.machine.run("test", "-e", "/etc/cut").returncode == 0, f"the package's {script}")
    node.sh("systemctl kill --signal=KILL cut")
    eventually(lambda: "lock-frontend" not in node.sh("lslocks -n -u || true"), "the end of dpkg")
    refused = node.machine.run("apt-get", "install", "-qy", "chrony")
    assert "dpkg was interrupted, you must manually run 'dpkg --configure -a'" in refused.stderr
    play = node.role("base", base_container=True)
    assert (play.code, CLOCK in play.changed) == (0, True), play.told
    assert node.sh("dpkg-query -W -f '${db:Status-Abbrev}' driver") == "ii "
    assert node.role("base", base_container=True).changed == ()


def test_packages_that_can_not_be_taken_up_are_named(bare: tuple[Booted, Repository]) -> None:
    node, source = bare
    source.add(Package(name="driver", scripts={"postinst": "#!/bin/sh\necho no room for modules >&2\nexit 1\n"}))
    node.sh("apt-get update -q; ! apt-get install -qy driver")
    play = node.role("base", base_container=True)
    assert play.code == 2
    assert "Packages are half installed, and can't be taken up: driver." in play.failure
    assert "no room for modules" in play.failure


def test_what_a_stack_wants_is_not_unwanted(bare: tuple[Booted, Repository]) -> None:
    node, source = bare
    source.add(Package(name="needrestart"))
    node.sh("apt-get update -q; apt-get install -qy needrestart")
    assert node.role("base", base_container=True, base_unwanted=[]).code == 0
    node.sh("dpkg-query -W needrestart")
    assert node.role("base", base_container=True).code == 0
    node.sh("! dpkg-query -W needrestart")


# A chrony that leaves the clock alone, which is the host's, starts in a container too.
TIMED = {
    "/etc/default/chrony": 'DAEMON_OPTS="-F 1 -x"\n',
    "/etc/systemd/system/chrony.service.d/test.conf": "[Unit]\nConditionCapability=\n",
}
AMAZON = "169.254.169.123"


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("timed"), TIMED) as made:
        yield made


def sources(node: Booted) -> list[str]:
    return [line.split(",")[2] for line in node.sh("chronyc -c -n sources").splitlines()]


def test_chrony_gets_amazons_time(timed: Booted) -> None:
    timed.sh("systemctl disable -q --now chrony")
    assert timed.role("base", base_container=True).code == 0
    assert AMAZON in sources(timed)
    timed.sh("systemctl is-enabled chrony")
    timed.sh("systemctl restart chrony")  # what a boot finds
    assert timed.role("base", base_container=True).changed == ()
    assert AMAZON in sources(timed)


def test_a_time_source_that_an_image_names_is_kept(timed: Booted) -> None:
    timed.sh(f"rm /etc/chrony/sources.d/*; echo 'server {AMAZON} iburst' > /etc/chrony/conf.d/aws.conf")
    timed.sh("systemctl restart chrony")
    assert timed.role("base", base_container=True).changed == ()
    timed.sh("rm /etc/chrony/conf.d/aws.conf; systemctl restart chrony; ! ls /etc/chrony/sources.d/*")


def test_a_chrony_that_does_not_take_amazons_time_is_told(timed: Booted) -> None:
    timed.sh("sed -i /sources.d/d /etc/chrony/chrony.conf; systemctl restart chrony")
    play = timed.role("base", base_container=True)
    assert play.code == 2
    assert f"not {AMAZON}: /etc/chrony/chrony.conf needs the line 'sourcedir /etc/chrony/sources.d'" in play.failure


LESS = 15000  # of open files: what the host of a container lets it have
KERNEL = "linux-image-cloud-amd64"


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    made = tmp_path_factory.mktemp("verified")
    with booted(made / "node", NO_SOURCES) as node, repository(made / "packages", node.network) as source:
        source.add(Package(name="needrestart"), Package(name=KERNEL))
        source.be_source_of(node)
        node.sh(f"apt-get install -qy {KERNEL}")
        assert node.role("base", base_container=True, base_nofile=LESS).code == 0
        yield node


SHARE = "/sys/kernel/mm/transparent_hugepage/enabled"
LIMITS = "/etc/systemd/system.conf.d/60-trainyard.conf"
MENDED = "the role mends it"


@pytest.mark.parametrize(
    ("kind", "spoil", "mend", "message"),
    [
        ("container", "sysctl -q -w net.core.somaxconn=77", MENDED, "net.core.somaxconn is 77, not 4096"),
        (
            "container",
            f"sed -i s/{LESS}/9000/ {LIMITS}; systemctl daemon-reexec",
            MENDED,
            f"a service gets a limit of 9000 open files, not {LESS}",
        ),
        (
            "machine",
            f"sed -i s/infinity/1M/ {LIMITS}; systemctl daemon-reexec",
            MENDED,
            "a service gets a limit of 1024 KiB of locked memory, not unlimited",
        ),
        (
            "container",
            f"sed -i '/^root/s/{LESS}/8000/' /etc/security/limits.d/*",
            MENDED,
            f"a session of root gets a limit of 8000 open files, not {LESS}",
        ),
        (
            "container",
            f"sed -i '/^*/s/{LESS}/8000/' /etc/security/limits.d/*",
            MENDED,
            f"a session of nobody gets a limit of 8000 open files, not {LESS}",
        ),
        ("container", "mount -o remount,size=1m /dev/shm", MENDED, "/dev/shm has 1024 KiB, not "),
        ("container", f"apt-mark unhold {KERNEL}", MENDED, f"{KERNEL} is not held"),
        ("container", "apt-get install -qy needrestart", MENDED, "needrestart is installed: it restarts services"),
        (
            "container",
            "echo 'APT::Periodic::Enable \"1\";' > /etc/apt/apt.conf.d/99-own",
            "rm /etc/apt/apt.conf.d/99-own",
            "apt upgrades by itself: APT::Periodic::Enable is '1'",
        ),
        (
            "machine",
            f"echo 'always madvise [never]' > /root/never; mount --bind /root/never {SHARE}",
            f"umount {SHARE}",
            "transparent huge pages are never, not madvise",
        ),
        ("machine", "true", "true", "0 huge pages are reserved, not 1000000"),
        ("machine", "true", "true", "chrony, which keeps the clock, is inactive"),
    ],
)
def test_the_verification_sees_what_changed_since(
    verified: Booted, kind: str, spoil: str, mend: str, message: str
) -> None:
    def told(kind: str, huge_pages: int = 0) -> str:
        words = (kind, str(LESS), "80", str(huge_pages), AMAZON, "needrestart", KERNEL)
        return verified.machine.run("/bin/sh", f"{ROOT}/playbooks/roles/base/files/verify.sh", *words).stderr

    verified.sh(spoil)
    assert message in told(kind, 1000000)
    if mend == MENDED:
        assert verified.role("base", base_container=True, base_nofile=LESS).code == 0
    else:
        verified.sh(mend)
    assert told("container") == ""
