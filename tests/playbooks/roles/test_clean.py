"""The role `clean` on a booted machine: it removes machine-specific state, keeps software, and verifies both."""

from collections.abc import Iterator

import pytest

from tests.machines import BootedMachine, boot_machine

pytestmark = pytest.mark.booted

BASE = "/opt/trainyard"
MACHINE_STATE = (
    *("/etc/ssh/ssh_host_rsa_key", "/etc/hostname", "/var/lib/systemd/random-seed", "/var/lib/amazon/ssm/i-1/state"),
    *("/root/.bash_history", "/var/lib/cloud/instances/i-1/sem/user", "/var/lib/apt/lists/index"),
    *(f"{BASE}/{name}" for name in ("node.json", "boot.json", "manifest.json", "fetched.json", "playbook/artifacts")),
    "/etc/systemd/system/trainyard-node.service",
)
SOFTWARE = tuple(f"{BASE}/{name}" for name in ("bundle/0/a.py", "venvs/0/a", "job-venv", "venv", "imported/0"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    files = dict.fromkeys((*MACHINE_STATE, *SOFTWARE), "x\n")
    with boot_machine(tmp_path_factory.mktemp("clean"), files) as machine:
        yield machine


def existing(node: BootedMachine, paths: tuple[str, ...]) -> list[str]:
    """Return the paths that exist."""
    return node.run_script(f"for path in {' '.join(paths)}; do [ ! -e $path ] || echo $path; done").split()


def test_the_verification_reports_machine_state_before_the_role_has_run(node: BootedMachine) -> None:
    include = {"ansible.builtin.include_role": {"name": "clean", "tasks_from": "verify.yml"}}
    failure = node.run_tasks([include]).failure
    assert "/etc/machine-id is not empty" in failure
    assert f"{BASE}/node.json must not be in an image" in failure
    assert "trainyard-node.service still exists" in failure


def test_machine_state_is_removed_and_software_is_kept(node: BootedMachine) -> None:
    assert node.run_script("cat /etc/machine-id").strip()
    result = node.run_role("clean")
    assert result.exit_code == 0, result.output
    assert existing(node, MACHINE_STATE) == []
    assert existing(node, SOFTWARE) == list(SOFTWARE)
    assert node.run_script("cat /etc/machine-id; ls /var/log/journal") == ""


def test_a_second_run_succeeds(node: BootedMachine) -> None:
    assert node.run_role("clean").exit_code == 0
