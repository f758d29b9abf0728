"""`replaced-nodes.json` in the data bucket: nodes of a cluster that were replaced in all runs, and where they ran."""

from collections import Counter

from pydantic import Field

from trainyard.base import StrictModel

MAXIMUM_NODES = 200
# A network node below which at least this many nodes were replaced within this time is suspect: AWS names no hosts, and
# an instance shares its lowest network node with those near it (EC2 user guide, "Amazon EC2 instance topology").
SUSPECT_COUNT, SUSPECT_SECONDS = 2, 7 * 24 * 3600.0


class ReplacedNode(StrictModel):
    """A node that the controller replaced."""

    instance: str = Field(description="EC2 instance id.")
    run: str = Field(description="Run id.")
    time: float = Field(description="Unix time of the replacement, seconds.")
    reason: str = Field(description="Why it was replaced.")
    network_node: str | None = Field(description="Lowest network node of the instance; null if AWS names none.")


class ReplacedNodes(StrictModel):
    """The newest replaced nodes of a cluster, oldest first."""

    nodes: tuple[ReplacedNode, ...] = Field((), description="The nodes.")

    def add(self, node: ReplacedNode) -> "ReplacedNodes":
        """Return the nodes and this node."""
        return ReplacedNodes(nodes=(*self.nodes, node)[-MAXIMUM_NODES:])

    def suspect_network_nodes(self, now: float) -> dict[str, int]:
        """Return network node -> number of nodes replaced below it, for those with several recent ones."""
        recent = Counter(node.network_node for node in self.nodes if node.time > now - SUSPECT_SECONDS)
        return {name: count for name, count in recent.items() if name is not None and count >= SUSPECT_COUNT}
