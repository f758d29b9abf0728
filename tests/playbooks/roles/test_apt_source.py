"""The role `apt_source` on a booted machine."""

from collections.abc import Iterator

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import Booted, booted

pytestmark = pytest.mark.booted

TOOL = Package(name="tool", files={"/usr/bin/tool": "#!/bin/sh\necho there\n"})


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    with booted(tmp_path_factory.mktemp("apt_source"), NO_SOURCES) as made:
        yield made


@pytest.fixture(params=[None, "stable"])
def source(
    node: Booted, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Repository]:
    with repository(tmp_path_factory.mktemp("repository"), node.network, request.param) as made:
        made.add(TOOL)
        yield made
        node.sh("apt-get purge -qy tool || true; rm -f /etc/apt/sources.list.d/* /etc/apt/keyrings/*")


def variables(source: Repository, **others: str) -> dict[str, str]:
    suite = {"apt_source_suite": source.suite, "apt_source_components": "main"} if source.suite else {}
    told = {"name": "tools", "url": source.url, "key": source.key_url, "fingerprint": source.fingerprint}
    return {f"apt_source_{name}": value for name, value in told.items()} | suite | others


def test_apt_installs_from_it_and_a_second_run_changes_nothing(node: Booted, source: Repository) -> None:
    first = node.role("apt_source", **variables(source))
    assert (first.code, first.changed) == (0, ("apt_source : Have apt know the source",)), first.told
    node.sh("apt-get install -qy tool; tool")
    again = node.role("apt_source", **variables(source))
    assert (again.code, again.changed) == (0, ()), again.told


def test_a_run_that_was_killed_before_the_index_came_is_taken_up(node: Booted, source: Repository) -> None:
    assert node.role("apt_source", **variables(source)).code == 0
    node.sh("rm -r /var/lib/apt/lists/169.254*")
    assert node.role("apt_source", **variables(source)).changed == ("apt_source : Have apt know the source",)
    node.sh("apt-get install -qy tool")


@pytest.mark.parametrize("source", [None], indirect=True)
def test_a_key_that_is_another_one_is_refused(node: Booted, source: Repository) -> None:
    told = node.role("apt_source", **variables(source, apt_source_fingerprint="A" * 40))
    assert told.code == 2
    assert f"holds {source.fingerprint}, not the key {'A' * 40}" in told.failure
    node.sh("! ls /etc/apt/keyrings/* /etc/apt/sources.list.d/*")


@pytest.mark.parametrize("source", [None], indirect=True)
def test_an_outage_is_borne(node: Booted, source: Repository) -> None:
    source.drop(2)
    assert node.role("apt_source", **variables(source)).code == 0
    assert source.dropped()


def has(node: Booted, source: Repository, listed: str, name: str = "image.list") -> None:
    """Bring the source, as an image does: with a key of another name. `listed`: its file, with URL, WHERE and KEY."""
    key = "/usr/share/keyrings/image.asc"
    node.put(key, (source.folder / "key.asc").read_text())
    text = listed.replace("URL", source.url).replace("WHERE", source.where).replace("KEY", key)
    node.put(f"/etc/apt/sources.list.d/{name}", text)


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("image.list", "deb [signed-by=KEY] URL ./\n"),
        ("image.sources", "Types: deb\nURIs: URL/\nSuites: /\nSigned-By: KEY\n"),
    ],
)
@pytest.mark.parametrize("source", [None], indirect=True)
def test_a_source_that_the_image_brings_is_left_as_it_is(
    node: Booted, source: Repository, name: str, listed: str
) -> None:
    has(node, source, listed, name)
    node.sh("apt-get update -q")
    told = node.role("apt_source", **variables(source))
    assert (told.code, told.changed) == (0, ()), told.told
    assert node.sh("ls /etc/apt/sources.list.d") == f"{name}\n"


@pytest.mark.parametrize("source", [None], indirect=True)
def test_it_is_known_by_what_apt_makes_of_it(node: Booted, source: Repository) -> None:
    """NVIDIA's own list of the container toolkit says $(ARCH), and many images hold no index."""
    (source.folder / "amd64").symlink_to(".")
    has(node, source, "deb [signed-by=KEY] URL/$(ARCH) WHERE\n")
    mine = variables(source, apt_source_url=f"{source.url}/amd64")
    assert node.role("apt_source", **mine).code == 0
    assert node.sh("ls /etc/apt/sources.list.d") == "image.list\n"
    node.sh("apt-get install -qy tool; tool")
    assert node.role("apt_source", **mine).changed == ()


@pytest.mark.parametrize("source", [None], indirect=True)
def test_one_that_an_image_brings_later_takes_its_place(node: Booted, source: Repository) -> None:
    """Two with two keys are a state in which apt does nothing at all."""
    assert node.role("apt_source", **variables(source)).code == 0
    has(node, source, "deb [signed-by=KEY] URL WHERE\n")
    assert "Conflicting values" in node.machine.run("apt-get", "update").stderr
    told = node.role("apt_source", **variables(source))
    assert told.code == 0, told.told
    assert node.sh("ls /etc/apt/sources.list.d") == "image.list\n"


@pytest.mark.parametrize("source", ["stable"], indirect=True)
def test_another_suite_at_the_same_address_is_another_source(node: Booted, source: Repository) -> None:
    has(node, source, "deb [signed-by=KEY] URL edge main\n")
    assert node.role("apt_source", **variables(source)).code == 0
    assert "trainyard-tools.list" in node.sh("ls /etc/apt/sources.list.d")


@pytest.mark.parametrize("source", [None], indirect=True)
def test_gpg_comes_where_the_image_has_none(
    node: Booted, source: Repository, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node.sh("cp /usr/bin/gpg /root/gpg; dpkg --purge --force-depends gpg; ! command -v gpg")
    with repository(tmp_path_factory.mktemp("distribution"), node.network) as own:
        own.add(Package(name="gpg", version="9-1", files={"/usr/bin/gpg": '#!/bin/sh\nexec /root/gpg "$@"\n'}))
        own.be_source_of(node, "distribution")
        told = node.role("apt_source", **variables(source))
        assert (told.code, len(told.changed)) == (0, 2), told.told
        node.sh("apt-get install -qy tool")
