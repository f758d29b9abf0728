"""What NCCL and its OFI plugin say in their own log of the network that they use: with NCCL_DEBUG=INFO, one file a
process (NCCL_DEBUG_FILE).

Lines as aws-ofi-nccl 1.5 and newer write them; up to 1.13 it is "Selected Provider", and names no fabric:
`NCCL INFO NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)`, `NCCL INFO Using network Libfabric`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_SELECTED = re.compile(r"NET/OFI Selected provider is ([\w-]+)[^\n(]*(?:\(found (\d+) nics?\))?", re.IGNORECASE)
_USING = re.compile(r"NCCL INFO Using network (\S[^\n]*?)\s*$", re.MULTILINE)
PLUGIN = "Libfabric"  # in the plugin's name for itself: "AWS Libfabric" before 1.14


@dataclass(frozen=True)
class Network:
    """`name`: as NCCL calls what it uses, e.g. Libfabric or Socket; none where it came to no network. `provider` and
    `devices`: of libfabric, as the OFI plugin tells them."""

    name: str | None = None
    provider: str | None = None
    devices: int | None = None

    @property
    def by_plugin(self) -> bool:
        return self.name is not None and PLUGIN in self.name


def network_in(log: str) -> Network:
    """What one process used. Of several communicators the last counts: each may choose anew."""
    names, selected = _USING.findall(log), _SELECTED.findall(log)
    name = names[-1] if names else None
    if not selected or (name is not None and PLUGIN not in name):
        return Network(name)
    provider, count = selected[-1]
    return Network(name, provider, int(count) if count else None)


def network_of(logs: Iterable[str]) -> Network:
    """What a node used: where its processes differ, the worst of them, for the slowest holds up all."""
    found = [network for log in logs if (network := network_in(log)) != Network()]
    return min(found, key=lambda one: (one.by_plugin, one.provider == "efa", one.devices or 0), default=Network())


def logs_in(folder: Path) -> list[str]:
    """The logs of this node's processes."""
    return [file.read_text(errors="replace") for file in sorted(folder.glob("nccl.*"))]
