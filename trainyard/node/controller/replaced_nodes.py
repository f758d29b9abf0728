"""Records replaced nodes in the data bucket, and finds nodes below network nodes with several replaced nodes."""

import logging
from collections.abc import Collection

from botocore.exceptions import BotoCoreError, ClientError
from pydantic import ValidationError

from trainyard.models.layout import REPLACED_NODES
from trainyard.models.replaced_nodes import ReplacedNode, ReplacedNodes
from trainyard.node.controller.run_state import RunState
from trainyard.node.controller.topology import Topology

RETRY_SECONDS = 60.0
LOG = logging.getLogger("controller")


class ReplacementHistory:
    """The replaced nodes of a cluster. It only affects the order of nodes: errors of AWS do not delay a recovery."""

    def __init__(self, state: RunState, topology: Topology) -> None:
        self._state, self._topology = state, topology
        self._replaced = ReplacedNodes()
        self._unread: list[ReplacedNode] = []  # added while the stored nodes could not be read
        self._is_read, self._retry_at = False, 0.0

    def add(self, node: str, reason: str) -> None:
        """Record that a node is replaced."""
        network_node, state = self._find_lowest([node]).get(node), self._state
        now = state.clock.time()
        replaced = ReplacedNode(instance=node, run=state.run.run, time=now, reason=reason, network_node=network_node)
        self._unread.append(replaced)
        self._replaced = self._read()
        if not self._is_read:
            return  # the stored nodes would be lost
        try:
            state.data.write(REPLACED_NODES, self._replaced.model_dump_json(indent=1).encode())
        except (BotoCoreError, ClientError) as error:
            LOG.warning("the replacement of %s is not recorded: %s", node, error)
        if count := self._replaced.suspect_network_nodes(now).get(network_node or ""):
            LOG.warning("%d nodes below the network node %s were replaced recently", count, network_node)

    def find_unsuspected(self, nodes: Collection[str]) -> frozenset[str]:
        """Return the nodes that are not below a network node with several recent replacements."""
        suspect = self._read().suspect_network_nodes(self._state.clock.time())
        network_nodes = self._find_lowest(nodes) if suspect else {}
        return frozenset(node for node in nodes if network_nodes.get(node) not in suspect)

    def _read(self) -> ReplacedNodes:
        now = self._state.clock.monotonic()
        if not self._is_read and now >= self._retry_at:
            try:
                content = self._state.data.find(REPLACED_NODES)
                stored = ReplacedNodes() if content is None else ReplacedNodes.model_validate_json(content)
            except (BotoCoreError, ClientError) as error:
                self._retry_at = now + RETRY_SECONDS
                LOG.warning("the history of replaced nodes cannot be read: %s", error)
                return self._replaced
            except ValidationError as error:
                LOG.warning("%s is not valid and is replaced: %s", REPLACED_NODES, error)
                stored = ReplacedNodes()
            self._is_read, self._replaced = True, stored
        if self._is_read:
            while self._unread:
                self._replaced = self._replaced.add(self._unread.pop(0))
        return self._replaced

    def _find_lowest(self, nodes: Collection[str]) -> dict[str, str]:
        """Return node -> its lowest network node, for those that AWS describes."""
        network_nodes = self._topology.find_network_nodes(nodes)
        return {node: network_nodes[node][-1] for node in nodes if network_nodes.get(node)}
