"""Memory of this host, as the kernel describes it."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def read_host_memory(file: Path = MEMINFO) -> dict[str, int]:
    """Return name -> bytes, such as MemTotal and MemAvailable; nothing if the file does not exist.

    Format: https://docs.kernel.org/filesystems/proc.html#meminfo. Values without a unit are omitted.
    """
    if not file.exists():
        return {}
    lines = (line.split() for line in file.read_text().splitlines())
    return {fields[0].rstrip(":"): int(fields[1]) * 1024 for fields in lines if fields[-1] == "kB"}
