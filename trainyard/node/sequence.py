"""Sequence numbers of the reports of one node."""

import time


def next_sequence() -> int:
    """Return the nanoseconds since the boot of the node, suspended time included (CLOCK_BOOTTIME, time(7)).

    They increase across restarts of a process, and no change of the system time affects them.
    """
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
