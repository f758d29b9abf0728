"""The kernel log: `/dev/kmsg` on a node.

Format and behaviour: https://kernel.org/doc/Documentation/ABI/testing/dev-kmsg:
`priority,sequence,microseconds,flags;text`, one record per read, EPIPE when records were overwritten before they were
read.
"""

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainyard.node.health.rules import KERNEL_RULES, XID_OTHER, XID_RULES, Rule
from trainyard.node.health.sensor import Reading
from trainyard.node.identity import ROOT

# A failed rank is reported within a second or two, and its cause must be known by then.
LOG_READ_SECONDS = 0.5
_READ_BYTES = 16384  # more than the longest record, which the kernel otherwise refuses to return (EINVAL)
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<gpu>[0-9a-fA-F:.]+)[^)]*\): (?P<number>\d+), (?P<text>.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})")
_PATTERNS = [(rule, re.compile(rule.pattern, re.DOTALL)) for rule in KERNEL_RULES]
_KERNEL_FACILITY = 0  # LOG_KERN, which no process can write


@dataclass(frozen=True)
class Record:
    """One record. `sequence`: its number since the boot. `seconds`: its time since the boot."""

    sequence: int
    seconds: float
    text: str


def parse_record(line: str) -> Record | None:
    """Parse a line of /dev/kmsg; None for a property of a record, and for a message of another program."""
    prefix, separator, text = line.partition(";")
    fields = prefix.split(",")
    if not separator or line.startswith(" ") or len(fields) < 4 or not all(map(str.isdigit, fields[:3])):
        return None
    priority, sequence, microseconds = map(int, fields[:3])
    if priority >> 3 != _KERNEL_FACILITY:
        return None
    unescaped = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)
    return Record(sequence, microseconds / 1e6, " ".join(unescaped.split()))


def find_rule(text: str) -> tuple[Rule, str | None, str] | None:
    """Return rule, device and sentence for the text of a record; None if no rule matches.

    The device of an Xid is the PCI address of its GPU.
    """
    if xid := _XID.search(text):
        number, details = int(xid["number"]), xid["text"]
        for rule in XID_RULES:
            if number in rule.xids and re.search(rule.pattern, details):
                return rule, xid["gpu"], f"Xid {number}: {details}"
        return (XID_OTHER, xid["gpu"], f"Xid {number}: {details}") if re.search(XID_OTHER.pattern, details) else None
    for rule, pattern in _PATTERNS:
        if match := pattern.search(text):
            return rule, next(filter(None, match.groupdict().values()), None), text
    return None


def gpu_name(address: str, root: Path = ROOT) -> str:
    """Name of the GPU with a PCI address, such as `GPU 3`: its place in the order of addresses, which is NVML's.

    The driver lists its GPUs in /proc/driver/nvidia/gpus
    (https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/procinterface.html).
    """
    folder = root / "proc/driver/nvidia/gpus"
    addresses = sorted(path.name.lower() for path in folder.iterdir()) if folder.is_dir() else []
    for index, each in enumerate(addresses):
        if each.partition(".")[0] == address.lower().partition(".")[0]:
            return f"GPU {index}"
    return f"GPU {address}"


class KernelLog:
    """Reads the records since the boot, also those before this process started.

    A record whose action was a reset is ignored after `mark_repaired`, also by an agent that starts later in this boot.
    """

    name, interval_seconds = "the kernel log", LOG_READ_SECONDS

    def __init__(self, root: Path = ROOT) -> None:
        self._root, self._file = root, root / "dev/kmsg"
        self._descriptor: int | None = None
        self._rest, self._last = b"", -1

    def read(self) -> Iterator[Reading]:
        """Return a reading for each new record that a rule matches."""
        boot_time = time.time() - time.monotonic()
        repaired = read_repaired(self._root)
        for record in self.records():
            match = find_rule(record.text)
            if match is None or (match[0].action == "reset" and record.sequence <= repaired):
                continue
            rule, device, text = match
            if (
                device is not None
                and re.fullmatch(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F:.]+", device)
                and "NVRM" in record.text
            ):
                device = gpu_name(device, self._root)
            yield Reading(rule, device, text, boot_time + record.seconds)

    def records(self) -> Iterator[Record]:
        """Return the kernel's records that have not been returned yet. A missing log has none."""
        if self._descriptor is None:
            if not self._file.exists():
                return
            self._descriptor = os.open(self._file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        while True:
            try:
                content = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # records were lost; the next read returns the oldest that exists
                continue
            if not content:
                return
            *lines, self._rest = (self._rest + content).split(b"\n")
            for line in lines:
                record = parse_record(line.decode(errors="replace"))
                if record is not None and record.sequence > self._last:
                    self._last = record.sequence
                    yield record

    def close(self) -> None:
        """Close the log. The next `read` opens it again and continues after the last record."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self._rest = None, b""


def read_repaired(root: Path = ROOT) -> int:
    """Number of the last record before the last reset of the GPUs in this boot; -1 without a reset."""
    mark = _repaired_mark(root)
    return int(mark.read_text()) if mark.exists() else -1


def mark_repaired(root: Path = ROOT) -> None:
    """Store that the GPUs were reset now. /run is empty after a boot (hier(7))."""
    log = KernelLog(root)
    last = max((record.sequence for record in log.records()), default=-1)
    log.close()
    _repaired_mark(root).write_text(str(last))


def _repaired_mark(root: Path) -> Path:
    return root / "run/trainyard-gpu-reset"
