"""The role `security_updates` on a booted machine."""

from collections.abc import Iterator

import pytest

from tests.machines import BootedMachine, boot_machine
from tests.polling import eventually

pytestmark = pytest.mark.booted

TIMER = "trainyard-security-updates.timer"
# In place of the package: writes its configuration, as apt passes it to programs.
UPGRADE = "#!/bin/sh\napt-config dump Unattended-Upgrade > /run/upgraded\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    defaults = 'Unattended-Upgrade::Allowed-Origins { "${distro_id}:${distro_codename}"; };\n'
    files = {
        "/usr/bin/unattended-upgrade": UPGRADE,
        "/etc/apt/apt.conf.d/50unattended-upgrades": defaults,
    }
    with boot_machine(tmp_path_factory.mktemp("updates"), files) as machine:
        machine.run_script("chmod +x /usr/bin/unattended-upgrade")
        yield machine


def test_security_updates_are_installed_after_the_boot(node: BootedMachine) -> None:
    first = node.run_role("security_updates", security_updates_delay_seconds=1)
    assert first.exit_code == 0, first.output
    eventually(lambda: node.run_script("cat /run/upgraded || true") != "", "the security updates", 30.0)
    config = node.run_script("cat /run/upgraded")
    assert "origin=Debian,codename=${distro_codename}-security,label=Debian-Security" in config
    assert "Allowed-Origins::" not in config


def test_a_second_run_changes_nothing(node: BootedMachine) -> None:
    second = node.run_role("security_updates", security_updates_delay_seconds=1)
    assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


def test_an_image_without_the_package_is_no_error(node: BootedMachine) -> None:
    node.run_script("rm /usr/bin/unattended-upgrade; systemctl start trainyard-security-updates.service")
    assert node.run_script("systemctl is-failed trainyard-security-updates.service || true").strip() == "inactive"
