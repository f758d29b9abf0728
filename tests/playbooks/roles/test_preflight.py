"""The role `preflight` on a booted machine whose files identify it as one distribution after the other."""

from collections.abc import Iterator

import pytest

from tests.machines import BootedMachine, PlaybookResult, boot_machine
from tests.playbooks.roles.nvidia import UBUNTU

FEDORA = 'NAME="Fedora Linux"\nID=fedora\nVERSION_ID=42\nVERSION="42 (Cloud Edition)"\n'


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    with boot_machine(tmp_path_factory.mktemp("preflight")) as machine:
        machine.run_script("cp -L /etc/os-release /root/debian; cp /etc/debian_version /root")
        yield machine


def verify_system(node: BootedMachine, files: dict[str, str]) -> PlaybookResult:
    """Run the verification of the operating system on a machine with these files."""
    node.run_script(
        "cp --remove-destination /root/debian /etc/os-release; cp /root/debian_version /etc; rm -f /etc/lsb-release"
    )
    for path, text in files.items():
        node.write_file(path, text)
    verification = {"name": "preflight", "tasks_from": "verify.yml"}
    return node.run_tasks([{"ansible.builtin.include_role": verification}])


@pytest.mark.booted
@pytest.mark.parametrize("files", [{}, UBUNTU], ids=["Debian 12", "Ubuntu 24.04"])
def test_a_supported_distribution_passes(node: BootedMachine, files: dict[str, str]) -> None:
    result = verify_system(node, files)
    assert (result.exit_code, result.changed_tasks) == (0, ()), result.output


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
def test_an_unsupported_distribution_is_refused_by_name(node: BootedMachine, files: dict[str, str], name: str) -> None:
    result = verify_system(node, files)
    assert result.exit_code == 2, result.output
    assert f"{name} " in result.failure
    assert "is not supported: nodes need Ubuntu 24.04 or Debian 12" in result.failure.replace("\\n", " ")
