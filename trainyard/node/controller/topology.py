"""Reads the network nodes above each instance from EC2 (DescribeInstanceTopology), once for each instance.

EC2 describes running instances only (API reference of DescribeInstanceTopology), so later calls repeat the request for
others.
"""

import logging
from collections.abc import Collection, Mapping

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.node.controller.account import Account

LOG = logging.getLogger("controller")


class Topology:
    """The network nodes of the instances of one run."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._network_nodes: dict[str, tuple[str, ...]] = {}

    def find_network_nodes(self, nodes: Collection[str]) -> Mapping[str, tuple[str, ...]]:
        """Return node -> its network nodes from top to bottom. Those that AWS does not describe now are missing."""
        unknown = [node for node in nodes if node not in self._network_nodes]
        if unknown:
            try:
                described = self._account.describe_network_nodes(unknown)
            except (BotoCoreError, ClientError) as error:
                LOG.warning("the network topology of %s cannot be read: %s", ", ".join(unknown), error)
            else:
                self._network_nodes.update({node: path for node, path in described.items() if path})
        return self._network_nodes
