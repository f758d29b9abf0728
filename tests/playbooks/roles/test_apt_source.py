"""The role `apt_source` on a booted machine."""

from collections.abc import Iterator

import pytest

from tests.apt_repository import NO_SOURCES, Package, Repository, repository
from tests.machines import BootedMachine, boot_machine

pytestmark = pytest.mark.booted

ADD_SOURCE = "apt_source : Add the package source"
TOOL = Package(name="tool", files={"/usr/bin/tool": "#!/bin/sh\necho installed\n"})


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BootedMachine]:
    with boot_machine(tmp_path_factory.mktemp("apt_source"), NO_SOURCES) as machine:
        yield machine


@pytest.fixture(params=[None, "stable"])
def source(
    node: BootedMachine, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Repository]:
    with repository(tmp_path_factory.mktemp("repository"), node.network, request.param) as source:
        source.add(TOOL)
        yield source
        node.run_script("apt-get purge -qy tool || true; rm -f /etc/apt/sources.list.d/* /etc/apt/keyrings/*")


def variables(source: Repository, **overrides: str) -> dict[str, str]:
    suite = {"apt_source_suite": source.suite, "apt_source_components": "main"} if source.suite else {}
    values = {"name": "tools", "url": source.url, "key": source.key_url, "fingerprint": source.fingerprint}
    return {f"apt_source_{name}": value for name, value in values.items()} | suite | overrides


def test_apt_installs_from_the_source_and_a_second_run_changes_nothing(node: BootedMachine, source: Repository) -> None:
    first = node.run_role("apt_source", **variables(source))
    assert (first.exit_code, first.changed_tasks) == (0, (ADD_SOURCE,)), first.output
    node.run_script("apt-get install -qy tool; tool")
    second = node.run_role("apt_source", **variables(source))
    assert (second.exit_code, second.changed_tasks) == (0, ()), second.output


def test_a_missing_index_is_downloaded_again(node: BootedMachine, source: Repository) -> None:
    assert node.run_role("apt_source", **variables(source)).exit_code == 0
    node.run_script("rm -r /var/lib/apt/lists/169.254*")
    assert node.run_role("apt_source", **variables(source)).changed_tasks == (ADD_SOURCE,)
    node.run_script("apt-get install -qy tool")


@pytest.mark.parametrize("source", [None], indirect=True)
def test_a_key_with_another_fingerprint_is_refused(node: BootedMachine, source: Repository) -> None:
    result = node.run_role("apt_source", **variables(source, apt_source_fingerprint="A" * 40))
    assert result.exit_code == 2
    assert f"has {source.fingerprint}, not the key {'A' * 40}" in result.failure
    node.run_script("! ls /etc/apt/keyrings/* /etc/apt/sources.list.d/*")


@pytest.mark.parametrize("source", [None], indirect=True)
def test_dropped_connections_are_retried(node: BootedMachine, source: Repository) -> None:
    source.drop_connections(2)
    assert node.run_role("apt_source", **variables(source)).exit_code == 0
    assert source.has_dropped_all()


def add_as_image(node: BootedMachine, source: Repository, listed: str, name: str = "image.list") -> None:
    """Add the source as an image does, with a key file of another name.

    `listed`: text of the source file, with the placeholders URL, WHERE and KEY.
    """
    key = "/usr/share/keyrings/image.asc"
    node.write_file(key, (source.folder / "key.asc").read_text())
    text = listed.replace("URL", source.url).replace("WHERE", source.suite_and_components).replace("KEY", key)
    node.write_file(f"/etc/apt/sources.list.d/{name}", text)


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("image.list", "deb [signed-by=KEY] URL ./\n"),
        ("image.sources", "Types: deb\nURIs: URL/\nSuites: /\nSigned-By: KEY\n"),
    ],
)
@pytest.mark.parametrize("source", [None], indirect=True)
def test_a_source_of_the_image_stays_unchanged(node: BootedMachine, source: Repository, name: str, listed: str) -> None:
    add_as_image(node, source, listed, name)
    node.run_script("apt-get update -q")
    result = node.run_role("apt_source", **variables(source))
    assert (result.exit_code, result.changed_tasks) == (0, ()), result.output
    assert node.run_script("ls /etc/apt/sources.list.d") == f"{name}\n"


@pytest.mark.parametrize("source", [None], indirect=True)
def test_a_source_of_the_image_is_recognized_by_the_urls_that_apt_requests(
    node: BootedMachine, source: Repository
) -> None:
    """NVIDIA's own source list of the container toolkit contains $(ARCH), and many images have no index."""
    (source.folder / "amd64").symlink_to(".")
    add_as_image(node, source, "deb [signed-by=KEY] URL/$(ARCH) WHERE\n")
    overridden = variables(source, apt_source_url=f"{source.url}/amd64")
    assert node.run_role("apt_source", **overridden).exit_code == 0
    assert node.run_script("ls /etc/apt/sources.list.d") == "image.list\n"
    node.run_script("apt-get install -qy tool; tool")
    assert node.run_role("apt_source", **overridden).changed_tasks == ()


@pytest.mark.parametrize("source", [None], indirect=True)
def test_a_later_source_of_the_image_replaces_that_of_the_role(node: BootedMachine, source: Repository) -> None:
    """apt fails if a source is listed twice with two keys."""
    assert node.run_role("apt_source", **variables(source)).exit_code == 0
    add_as_image(node, source, "deb [signed-by=KEY] URL WHERE\n")
    assert "Conflicting values" in node.machine.run_command("apt-get", "update").stderr
    result = node.run_role("apt_source", **variables(source))
    assert result.exit_code == 0, result.output
    assert node.run_script("ls /etc/apt/sources.list.d") == "image.list\n"


@pytest.mark.parametrize("source", ["stable"], indirect=True)
def test_another_suite_at_the_same_url_is_another_source(node: BootedMachine, source: Repository) -> None:
    add_as_image(node, source, "deb [signed-by=KEY] URL edge main\n")
    assert node.run_role("apt_source", **variables(source)).exit_code == 0
    assert "trainyard-tools.list" in node.run_script("ls /etc/apt/sources.list.d")


@pytest.mark.parametrize("source", [None], indirect=True)
def test_gpg_is_installed_if_it_is_missing(
    node: BootedMachine, source: Repository, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node.run_script("cp /usr/bin/gpg /root/gpg; dpkg --purge --force-depends gpg; ! command -v gpg")
    with repository(tmp_path_factory.mktemp("distribution"), node.network) as distribution:
        distribution.add(Package(name="gpg", version="9-1", files={"/usr/bin/gpg": '#!/bin/sh\nexec /root/gpg "$@"\n'}))
        distribution.add_source_to(node, "distribution")
        result = node.run_role("apt_source", **variables(source))
        assert (result.exit_code, len(result.changed_tasks)) == (0, 2), result.output
        node.run_script("apt-get install -qy tool")
