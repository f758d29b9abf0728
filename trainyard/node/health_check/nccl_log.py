"""Network that NCCL and its OFI plugin use, from their log: NCCL_DEBUG=INFO, one file per process (NCCL_DEBUG_FILE).

Format of aws-ofi-nccl 1.5 and newer; up to 1.13 it is "Selected Provider", without a fabric:
`NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)`, `NCCL INFO Using network Libfabric`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SELECTED = re.compile(r"NET/OFI Selected provider is ([\w-]+)[^\n(]*(?:\(found (\d{1,4}) nics?\))?", re.IGNORECASE)
_USING = re.compile(r"NCCL INFO Using network (\S[^\n]{,99})")
PLUGIN = "Libfabric"  # part of the plugin's name: "AWS Libfabric" before 1.14


@dataclass(frozen=True)
class Network:
    """Network of one process.

    `name`: NCCL's name, e.g. Libfabric or Socket; None if NCCL selected no network. `provider` and `devices`: provider
    and number of devices of libfabric, as the OFI plugin logs them.
    """

    name: str | None = None
    provider: str | None = None
    devices: int | None = None

    @property
    def uses_plugin(self) -> bool:
        """Whether it is the network of the OFI plugin."""
        return self.name is not None and PLUGIN in self.name


def parse_network(log: str) -> Network:
    """Network of one process. The last communicator counts: each communicator selects a network."""
    names, selected = _USING.findall(log), _SELECTED.findall(log)
    name = names[-1].rstrip() if names else None
    if not selected or (name is not None and PLUGIN not in name):
        return Network(name)
    provider, count = selected[-1]
    return Network(name, provider, int(count) if count else None)


def slowest_network(logs: Iterable[str]) -> Network:
    """Network of a node: if its processes differ, the slowest, because all processes wait for it."""
    networks = [network for log in logs if (network := parse_network(log)) != Network()]
    return min(
        networks,
        key=lambda network: (network.uses_plugin, network.provider == "efa", network.devices or 0),
        default=Network(),
    )
