"""Sizes in files of /proc: the memory of this host, or of a process."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def read_sizes(file: Path) -> dict[str, int]:
    """Return name -> bytes, such as MemAvailable in /proc/meminfo and VmRSS in /proc/self/status.

    Nothing if the file does not exist. Format: https://docs.kernel.org/filesystems/proc.html#meminfo. Values without a
    unit are omitted.
    """
    if not file.exists():
        return {}
    lines = (line.split() for line in file.read_text().splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) * 1024 for fields in lines if fields[-1] == "kB"}
