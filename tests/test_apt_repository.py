"""The tests' own package repository, as apt on a booted machine sees it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import Booted, booted

pytestmark = pytest.mark.booted

TOOL = Package(
    name="tool", version="2.0-1", depends=["base-tool (>= 1)"], files={"/usr/bin/tool": "#!/bin/sh\necho 2\n"}
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("apt"), NO_SOURCES) as made:
        yield made


@contextmanager
def source(node: Booted, folder: pytest.TempPathFactory, suite: str | None = None) -> Iterator[Repository]:
    with repository(folder.mktemp("repository"), node.network, suite) as made:
        made.be_source_of(node)
        yield made
        node.sh("apt-get purge -qy tool base-tool || true; rm /etc/apt/sources.list.d/tests.list")


@pytest.mark.parametrize("suite", [None, "stable"])
def test_apt_installs_from_it(node: Booted, tmp_path_factory: pytest.TempPathFactory, suite: str | None) -> None:
    with source(node, tmp_path_factory, suite) as made:
        made.add(TOOL, Package(name="base-tool", scripts={"postinst": "#!/bin/sh\necho yes > /etc/base-tool\n"}))
        assert node.sh("(apt-get update -q; apt-get install -qy tool) >&2; tool; cat /etc/base-tool") == "2\nyes\n"


def test_what_another_key_has_signed_is_refused(node: Booted, tmp_path_factory: pytest.TempPathFactory) -> None:
    with source(node, tmp_path_factory) as mine, repository(tmp_path_factory.mktemp("other"), node.network) as other:
        key = "/usr/share/keyrings/tests.asc"
        node.put(key, (other.folder / "key.asc").read_text())
        assert other.fingerprint != mine.fingerprint
        told = node.machine.run("apt-get", "-q", "-oAPT::Update::Error-Mode=any", "update")
        assert told.returncode == 100
        assert "NO_PUBKEY" in told.stdout + told.stderr


def test_it_goes_away_and_comes_back(node: Booted, tmp_path_factory: pytest.TempPathFactory) -> None:
    with source(node, tmp_path_factory) as made:
        update = ("apt-get", "-q", "-oAPT::Update::Error-Mode=any", "-oAcquire::Retries=0", "update")
        made.away()
        assert "Connection refused" in node.machine.run(*update).stderr
        made.back()
        made.drop(1)  # apt asks once more by itself
        assert node.machine.run(*update).returncode == 0
        assert made.dropped()
        made.drop(100)
        assert node.machine.run(*update).returncode == 100
        assert not made.dropped()
        made.drop(0)
        assert node.machine.run(*update).returncode == 0
        assert "/InRelease" in made.asked()
