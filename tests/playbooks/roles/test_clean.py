"""The role `clean` on a booted machine: what it takes, what it keeps, and that it looks."""

from collections.abc import Iterator

import pytest

from tests.machines import Booted, booted

pytestmark = pytest.mark.booted

BASE = "/opt/trainyard"
OWN = (
    *("/etc/ssh/ssh_host_rsa_key", "/etc/hostname", "/var/lib/systemd/random-seed", "/var/lib/amazon/ssm/i-1/state"),
    *("/root/.bash_history", "/var/lib/cloud/instances/i-1/sem/user", "/var/lib/apt/lists/index"),
    *(f"{BASE}/{name}" for name in ("node.json", "boot.json", "manifest.json", "fetched.json", "play/artifacts")),
    "/etc/systemd/system/trainyard-node.service",
)
KEPT = tuple(f"{BASE}/{name}" for name in ("bundle/0/play.py", "venvs/0/made", "job-venv", "venv", "imported/0"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("clean"), dict.fromkeys((*OWN, *KEPT), "x\n")) as made:
        yield made


def there(node: Booted, paths: tuple[str, ...]) -> list[str]:
    return node.sh(f"for each in {' '.join(paths)}; do [ ! -e $each ] || echo $each; done").split()


def test_what_is_left_is_told(node: Booted) -> None:
    """Before the role has run: everything that it looks for is there."""
    include = {"ansible.builtin.include_role": {"name": "clean", "tasks_from": "verify.yml"}}
    failure = node.play([include]).failure
    assert "/etc/machine-id is not empty" in failure
    assert f"{BASE}/node.json is nothing that an image shall have" in failure
    assert "trainyard-node.service is still there" in failure


def test_what_is_one_machines_own_goes_and_what_took_its_time_stays(node: Booted) -> None:
    assert node.sh("cat /etc/machine-id").strip()
    done = node.role("clean")
    assert done.code == 0, done.told
    assert there(node, OWN) == []
    assert there(node, KEPT) == list(KEPT)
    assert node.sh("cat /etc/machine-id; ls /var/log/journal") == ""


def test_it_may_be_run_again(node: Booted) -> None:
    assert node.role("clean").code == 0
