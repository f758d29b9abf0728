#!/usr/bin/python3
"""Looks whether libfabric sees every EFA device of the type, and whether NCCL's plugin can be loaded.

verify.py DEVICES PLUGIN SECONDS HUGE_PAGES
"""

import re
import subprocess
import sys
import time
from pathlib import Path

FI_INFO = "/opt/amazon/efa/bin/fi_info"
PCI = Path("/sys/bus/pci/devices")
# A job's torch has loaded these, of its own wheels, before NCCL loads the plugin.
TORCHS_OWN = ("libcudart.so", "libcuda.so", "libnvidia-ml.so")
LOOK_EVERY = 5.0


def devices(told: str) -> list[str]:
    """Devices in what fi_info says, which has one entry for each fabric (efa, efa-direct) of each."""
    domains = re.findall(r"^\s*domain:\s*(\S+)", told, re.M)
    return sorted({re.sub(r"-(rdm|dgrm)$", "", domain) for domain in domains})


def attached(pci: Path = PCI) -> int:
    """EFA devices on the PCI bus (Amazon's 1d0f:efa0, efa1, ...), whether a driver has them or not."""
    return sum(
        (device / "vendor").read_text().strip() == "0x1d0f"
        and (device / "device").read_text().strip().startswith("0xefa")
        for device in (pci.iterdir() if pci.exists() else ())
    )


def seen() -> tuple[list[str], str]:
    """Devices that libfabric sees now, and its words where it fails."""
    try:
        done = subprocess.run(
            [FI_INFO, "-p", "efa", "-t", "FI_EP_RDM"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)
    return devices(done.stdout), (done.stderr or done.stdout).strip() if done.returncode else ""


def device_problem(wanted: int, seconds: float) -> str:
    """Empty when exactly `wanted` devices are there within `seconds`."""
    deadline = time.monotonic() + seconds
    found, words = seen()
    while len(found) != wanted and time.monotonic() < deadline:
        time.sleep(LOOK_EVERY)
        found, words = seen()
    if len(found) == wanted:
        return ""
    names = f" ({', '.join(found)})" if found else ""
    on_bus = attached()
    if on_bus == wanted:
        why = (
            "all of them are on the PCI bus: look at `dmesg | grep -i efa`, the driver or libfabric has not taken them"
        )
    else:
        why = f"{on_bus} are on the PCI bus: look at the interfaces of the launch template"
    return (
        f"libfabric sees {len(found)} EFA devices{names}, the type has {wanted}, and {why}"
        f"{f'; fi_info says: {words}' if words else ''} (waited {seconds:.0f} s)"
    )


def missing(ldd: str) -> list[str]:
    """Libraries that the loader does not find, by what ldd says, save those that torch brings."""
    names = re.findall(r"^\s*(\S+) => not found", ldd, re.M)
    return [name for name in names if not name.startswith(TORCHS_OWN)]


def plugin_problem(plugin: str) -> str:
    """Empty when the loader finds the plugin, as it will in the job's processes."""
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"^\s*{re.escape(plugin)} .*=> (\S+)", cache, re.M)
    if found is None:
        return f"the loader does not know {plugin}, NCCL's plugin for EFA: is it in /opt/amazon/ofi-nccl? (efa_oldest)"
    ldd = subprocess.run(["ldd", found[1]], capture_output=True, text=True, check=False).stdout
    if lost := missing(ldd):
        return f"{found[1]} can't be loaded: {', '.join(lost)} not found"
    if "not found" in ldd:  # torch's own
        return ""
    # In a process of its own: a damaged library ends the one that loads it.
    load = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", plugin]
    done = subprocess.run(load, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    words = done.stderr.strip().splitlines() or [f"whoever loads it ends by signal {-done.returncode}"]
    return f"{found[1]} can't be loaded: {words[-1]}"


def huge_pages_problem(wanted: int, meminfo: str) -> str:
    """Empty when as many are reserved. `meminfo`: text of /proc/meminfo."""
    found = re.search(r"^HugePages_Total:\s*(\d+)", meminfo, re.M)
    have = int(found[1]) if found else 0
    if have >= wanted:
        return ""
    return f"{have} huge pages are reserved, not {wanted} (base_huge_pages)"


def main(arguments: list[str]) -> int:
    wanted, plugin, seconds, huge_pages = int(arguments[0]), arguments[1], float(arguments[2]), int(arguments[3])
    problems = [
        device_problem(wanted, seconds),
        plugin_problem(plugin),
        huge_pages_problem(huge_pages, Path("/proc/meminfo").read_text()),
    ]
    for problem in filter(None, problems):
        print(problem, file=sys.stderr)
    return int(any(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
