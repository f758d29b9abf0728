"""The network of booted nodes: packets between isolated nodes are dropped."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rehearsal.hypervisor.nspawn.backend import namespace_suffix
from rehearsal.hypervisor.nspawn.network import Network, call_in_namespace, listen_in_namespace

ADDRESSES = {"i-0000000001": "10.0.0.1", "i-0000000002": "10.0.0.2", "i-0000000003": "10.0.0.3"}
PORT, TIMEOUT_SECONDS = 7001, 1.0
pytestmark = [pytest.mark.booted, pytest.mark.allow_hosts([*ADDRESSES.values()])]  # in the namespaces of the test


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """A network of three nodes, each of which accepts connections."""
    network, listeners = Network(namespace_suffix(tmp_path)), []
    network.open()
    for instance, address in ADDRESSES.items():
        network.attach_network(instance, address).close()
        listeners.append(listen_in_namespace(network.namespace_name(instance), address, PORT))
    yield network
    for listener in listeners:
        listener.close()
    for instance in ADDRESSES:
        network.detach_network(instance)
    network.close()


def can_connect(network: Network, source: str, target: str) -> bool:
    """Return whether a node can connect to another."""

    def connect() -> bool:
        try:
            socket.create_connection((ADDRESSES[target], PORT), TIMEOUT_SECONDS).close()
        except TimeoutError:
            return False
        return True

    return call_in_namespace(network.namespace_name(source), connect)


def test_packets_between_isolated_nodes_are_dropped(network: Network) -> None:
    first, second, third = ADDRESSES
    assert can_connect(network, first, second)
    for instance in (first, second):
        network.isolate(instance, True)
    assert not can_connect(network, first, second)
    assert can_connect(network, first, third)
    for instance in (first, second):
        network.isolate(instance, False)
    assert can_connect(network, first, second)
