"""Generate the page on the health of nodes: `python -m tools.docs.node_health > docs/node-health.md`."""

import sys
from collections.abc import Iterator
from itertools import groupby

from trainyard.node.health.rules import RULES, XID_OTHER, XID_RULES, Rule

_PAGE = """# Node health

The agent of a worker watches hardware and kernel of its node from its start to its end, for the built-in trainer and
for jobs of your own. Its heartbeats and its events of the kind `agent` carry the findings, the most severe first, in
the field `health`: the events are in `runs/<run>/events/`. The agent logs each new finding once. A finding interrupts
no job. If an attempt fails on a node with a finding that calls for a reset, a reboot or a replacement, the controller
repairs or replaces the node before the next attempt.

| action | meaning |
| --- | --- |
| `none` | the node is healthy; the job itself is the likely cause |
| `warn` | a sign, but no proof of broken hardware |
| `reset` | reset the GPUs of the node when no process uses them; a reset that fails becomes a reboot |
| `reboot` | reboot the node |
| `replace` | replace the node: a reboot of an instance leaves it on the same host |

A finding lasts until a repair or the end of the boot. Those of the rules marked with seconds end that long after the
last reading.

| sensor | source | interval |
| --- | --- | --- |
| kernel log | `/dev/kmsg`, records of the kernel only, from the boot on | 0.5 s |
| GPUs | NVML, through nvidia-ml-py; without NVIDIA's driver there is no such sensor | 5 s |
| EFA | `/sys/class/infiniband`, the counters that `rdma -p statistic show` prints | 5 s |
| disks | `statvfs` of `/` and of the instance store | 5 s |
| memory | `/proc/meminfo`, and EDAC in `/sys` where the instance has it | 5 s |

Each sensor has its own thread. One that fails is logged once and read again; one that hangs is a finding. DCGM is not
read: its health watches evaluate the same NVML values and Xids, and need a daemon that the nodes do not have.

`python -m tools.docs.node_health > docs/node-health.md` generates this page from `trainyard/node/health/rules.py`.
[Rehearse](rehearsal.md#faults) a broken GPU with `make rehearsal FAULT='gpu,xid=79,node=1,step=20'`.

## Rules

Xids are error numbers of NVIDIA's driver in the kernel log.

| rule | signal | Xids | action | source |
| --- | --- | --- | --- | --- |
{rows}
"""


def page() -> str:
    """Return the page as Markdown."""
    return _PAGE.format(rows="\n".join(map(_row, RULES.values())))


def _row(rule: Rule) -> str:
    seconds = f" ({rule.expires_seconds:.0f} s)" if rule.expires_seconds else ""
    signal = rule.signal + (f". {rule.reason[0].upper()}{rule.reason[1:]}" if rule.reason else "")
    xids = "others" if rule is XID_OTHER else ", ".join(_ranges(rule.xids)) if rule in XID_RULES else ""
    source = rule.source.removeprefix("https://").partition("/")[0]
    return f"| `{rule.name}` | {signal} | {xids} | `{rule.action}`{seconds} | [{source}]({rule.source}) |"


def _ranges(numbers: tuple[int, ...]) -> Iterator[str]:
    """Yield `5`, `7-9` for 5, 7, 8, 9."""
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        first, *others = [number for _, number in group]
        yield f"{first}-{others[-1]}" if others else f"{first}"


if __name__ == "__main__":
    sys.stdout.write(page())
