"""Fixtures: a separate emulated account per test module, and a configured node in it."""

from collections.abc import Iterator

import pytest

from rehearsal.aws.process import EmulatedAws
from tests.nodes import BootedCluster, boot_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, own_account: EmulatedAws) -> Iterator[BootedCluster]:
    with boot_cluster(tmp_path_factory.mktemp("cluster"), own_account) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def node(cluster: BootedCluster) -> str:
    """A worker on which the playbook has run once."""
    name = cluster.launch_worker()
    assert cluster.wait_for_playbook(name, 1).status == "ok", cluster.machine(name).read_journal()
    return name


@pytest.fixture
def terminate_new_nodes(cluster: BootedCluster) -> Iterator[None]:
    """Terminate the nodes that the test launches: the kernel allows about eight to boot at once."""
    before = len(cluster.launched)
    yield
    cluster.terminate(cluster.launched[before:])
