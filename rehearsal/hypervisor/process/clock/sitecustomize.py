"""Lets the Python programs of a node have another time: Python imports this module when it starts.

The hypervisor puts this folder on the module path of nodes for the fault `clock-step`. `time.time` and `time.time_ns`
add the seconds in the file that CLOCK_OFFSET_FILE names, which the fault changes. Monotonic clocks stay as they are.
Standard library only.
"""

import os
import time
from pathlib import Path

_READ_SECONDS = 0.1
_file, _time_ns = Path(os.environ["CLOCK_OFFSET_FILE"]), time.time_ns
_offset, _read_at = 0.0, float("-inf")


def offset() -> float:
    """Return the seconds that are added."""
    global _offset, _read_at
    now = time.monotonic()
    if now > _read_at + _READ_SECONDS:
        _offset, _read_at = float(_file.read_text()), now
    return _offset


def time_ns() -> int:
    """Return the Unix time of the node, nanoseconds."""
    return _time_ns() + int(offset() * 1e9)


def unix_time() -> float:
    """Return the Unix time of the node, seconds."""
    return time_ns() / 1e9


time.time_ns, time.time = time_ns, unix_time
