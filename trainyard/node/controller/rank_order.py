"""The order of nodes by rank: neighbours are close in the network of AWS."""

from collections.abc import Mapping, Sequence

from trainyard.node.controller.topology import Topology


def order_by_topology(
    nodes: Sequence[str], network_nodes: Mapping[str, Sequence[str]], previous: Sequence[str] = ()
) -> tuple[str, ...]:
    """Order nodes so that those below the same network node have consecutive ranks, in each layer of the network.

    `network_nodes`: node -> its network nodes from top to bottom. `previous`: nodes of the previous order, whose order
    remains where the groups allow it. Groups of new nodes follow, largest first. Nodes without network nodes are last.
    """
    positions = {node: position for position, node in enumerate(previous)}
    stable = sorted(nodes, key=lambda node: positions.get(node, len(previous)))
    known = [node for node in stable if network_nodes.get(node)]
    others = [node for node in stable if not network_nodes.get(node)]
    return (*_order_layer(known, network_nodes, positions, 0), *others)


def _order_layer(
    nodes: list[str], network_nodes: Mapping[str, Sequence[str]], positions: Mapping[str, int], layer: int
) -> list[str]:
    """Order the nodes of one group by their network nodes in `layer` and below."""
    groups: dict[str | None, list[str]] = {}
    for node in nodes:
        path = network_nodes[node]
        groups.setdefault(path[layer] if layer < len(path) else None, []).append(node)
    if groups.keys() <= {None}:
        return nodes
    ordered = sorted(groups.values(), key=lambda group: (positions.get(group[0], len(positions)), -len(group)))
    return [node for group in ordered for node in _order_layer(group, network_nodes, positions, layer + 1)]


def order_nodes(
    nodes: Sequence[str], topology: Topology, previous: Sequence[str], swapped: str | None = None
) -> tuple[str, ...]:
    """Return `nodes` in the order of their ranks. Nodes whose topology AWS does not return now are last.

    `swapped`: a node that gets the ranks of its neighbour, so that its previous ranks run on another node.
    """
    network_nodes = topology.find_network_nodes(nodes) if len(nodes) > 1 else {}
    ordered = list(order_by_topology(nodes, network_nodes, previous))
    if swapped in ordered and len(ordered) > 1:
        position = ordered.index(swapped)
        neighbour = position + 1 if position + 1 < len(ordered) else position - 1
        ordered[position], ordered[neighbour] = ordered[neighbour], ordered[position]
    return tuple(ordered)
