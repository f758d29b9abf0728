"""The role `preflight` on a booted machine that calls itself one system after the other."""

from collections.abc import Iterator

import pytest

from tests.machines import Booted, Play, booted
from tests.playbooks.roles.nvidia import UBUNTU

FEDORA = 'NAME="Fedora Linux"\nID=fedora\nVERSION_ID=42\nVERSION="42 (Cloud Edition)"\n'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("preflight")) as made:
        made.sh("cp -L /etc/os-release /root/debian; cp /etc/debian_version /root")
        yield made


def looked_at(node: Booted, files: dict[str, str]) -> Play:
    """What its look at the system says of one with these files."""
    node.sh(
        "cp --remove-destination /root/debian /etc/os-release; cp /root/debian_version /etc; rm -f /etc/lsb-release"
    )
    for path, text in files.items():
        node.put(path, text)
    only = {"name": "preflight", "tasks_from": "verify.yml"}
    return node.play([{"ansible.builtin.include_role": only}])


@pytest.mark.booted
@pytest.mark.parametrize("files", [{}, UBUNTU], ids=["Debian 12", "Ubuntu 24.04"])
def test_a_supported_system_is_taken(node: Booted, files: dict[str, str]) -> None:
    told = looked_at(node, files)
    assert (told.code, told.changed) == (0, ()), told.told


@pytest.mark.booted
@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({path: text.replace("24.04", "22.04") for path, text in UBUNTU.items()}, "Ubuntu 22.04"),
        (
            {
                "/etc/os-release": 'NAME="Debian GNU/Linux"\nID=debian\nVERSION_ID="13"\n',
                "/etc/debian_version": "13.1\n",
            },
            "Debian 13",
        ),
        ({"/etc/os-release": FEDORA, "/etc/debian_version": ""}, "Fedora"),
    ],
)
def test_another_one_is_named_and_refused(node: Booted, files: dict[str, str], name: str) -> None:
    told = looked_at(node, files)
    assert told.code == 2, told.told
    assert f"{name} " in told.failure
    assert "is not supported: nodes need Ubuntu 24.04 or Debian 12" in told.failure.replace("\\n", " ")
