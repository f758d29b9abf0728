"""Tests of the package repository that other tests use, with apt on a booted machine."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import BootedMachine, boot_machine

pytestmark = pytest.mark.booted

TOOL = Package(
    name="tool", version="2.0-1", depends=["base-tool (>= 1)"], files={"/usr/bin/tool": "#!/bin/sh\necho 2\n"}
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    with boot_machine(tmp_path_factory.mktemp("apt"), NO_SOURCES) as machine:
        yield machine


@contextmanager
def source(node: BootedMachine, folder: pytest.TempPathFactory, suite: str | None = None) -> Iterator[Repository]:
    with repository(folder.mktemp("repository"), node.network, suite) as created:
        created.add_source_to(node)
        yield created
        node.run_script("apt-get purge -qy tool base-tool || true; rm /etc/apt/sources.list.d/tests.list")


@pytest.mark.parametrize("suite", [None, "stable"])
def test_apt_installs_packages_from_the_repository(
    node: BootedMachine, tmp_path_factory: pytest.TempPathFactory, suite: str | None
) -> None:
    with source(node, tmp_path_factory, suite) as created:
        created.add(TOOL, Package(name="base-tool", scripts={"postinst": "#!/bin/sh\necho yes > /etc/base-tool\n"}))
        script = "(apt-get update -q; apt-get install -qy tool) >&2; tool; cat /etc/base-tool"
        assert node.run_script(script) == "2\nyes\n"


def test_apt_rejects_a_repository_signed_with_another_key(
    node: BootedMachine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with source(node, tmp_path_factory) as first, repository(tmp_path_factory.mktemp("other"), node.network) as other:
        key = "/usr/share/keyrings/tests.asc"
        node.write_file(key, (other.folder / "key.asc").read_text())
        assert other.fingerprint != first.fingerprint
        process = node.machine.run_command("apt-get", "-q", "-oAPT::Update::Error-Mode=any", "update")
        assert process.returncode == 100
        assert "NO_PUBKEY" in process.stdout + process.stderr


def test_server_can_be_stopped_restarted_and_drop_connections(
    node: BootedMachine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with source(node, tmp_path_factory) as created:
        update = ("apt-get", "-q", "-oAPT::Update::Error-Mode=any", "-oAcquire::Retries=0", "update")
        created.stop()
        assert "Connection refused" in node.machine.run_command(*update).stderr
        created.start()
        created.drop_connections(1)  # apt retries once by default
        assert node.machine.run_command(*update).returncode == 0
        assert created.has_dropped_all()
        created.drop_connections(100)
        assert node.machine.run_command(*update).returncode == 100
        assert not created.has_dropped_all()
        created.drop_connections(0)
        assert node.machine.run_command(*update).returncode == 0
        assert "/InRelease" in created.requested_paths()
