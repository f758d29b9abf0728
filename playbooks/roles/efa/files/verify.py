#!/usr/bin/python3
"""Verify that libfabric lists every EFA device of the instance type, and that NCCL can load its OFI plugin.

verify.py DEVICES PLUGIN TIMEOUT_SECONDS HUGE_PAGES

Prints one line per problem to stderr; exit status 0 or 1.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

FI_INFO = "/opt/amazon/efa/bin/fi_info"
PCI = Path("/sys/bus/pci/devices")
# A job's torch loads these from its own wheels before NCCL loads the plugin.
LIBRARIES_OF_TORCH = ("libcudart.so", "libcuda.so", "libnvidia-ml.so")
POLL_SECONDS = 5.0


def parse_devices(output: str) -> list[str]:
    """Return the devices in the output of fi_info, which has an entry per device and fabric (efa, efa-direct)."""
    domains = re.findall(r"^\s*domain:\s*(\S+)", output, re.M)
    return sorted({re.sub(r"-(rdm|dgrm)$", "", domain) for domain in domains})


def count_pci_devices(pci: Path = PCI) -> int:
    """Return the number of EFA devices on the PCI bus (Amazon's 1d0f:efa0, efa1, ...), with or without a driver."""
    return sum(
        (device / "vendor").read_text().strip() == "0x1d0f"
        and (device / "device").read_text().strip().startswith("0xefa")
        for device in (pci.iterdir() if pci.exists() else ())
    )


def list_devices() -> tuple[list[str], str]:
    """Return the devices that libfabric lists now, and the error output of fi_info if it fails."""
    try:
        process = subprocess.run(
            [FI_INFO, "-p", "efa", "-t", "FI_EP_RDM"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], str(error)
    error_output = (process.stderr or process.stdout).strip() if process.returncode else ""
    return parse_devices(process.stdout), error_output


def device_problem(expected: int, timeout_seconds: float) -> str:
    """Return why libfabric does not list exactly `expected` devices before the timeout; empty if it does."""
    deadline = time.monotonic() + timeout_seconds
    devices, error = list_devices()
    while len(devices) != expected and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        devices, error = list_devices()
    if len(devices) == expected:
        return ""
    names = f" ({', '.join(devices)})" if devices else ""
    on_bus = count_pci_devices()
    if on_bus == expected:
        cause = "all of them are on the PCI bus: check `dmesg | grep -i efa`, the driver or libfabric does not use them"
    else:
        cause = f"{on_bus} are on the PCI bus: check the network interfaces of the launch template"
    return (
        f"libfabric lists {len(devices)} EFA devices{names}, the instance type has {expected}, and {cause}"
        f"{f'; fi_info: {error}' if error else ''} (waited {timeout_seconds:.0f} s)"
    )


def missing_libraries(ldd_output: str) -> list[str]:
    """Return the libraries that the loader does not find, except those that torch provides."""
    names = re.findall(r"^\s*(\S+) => not found", ldd_output, re.M)
    return [name for name in names if not name.startswith(LIBRARIES_OF_TORCH)]


def plugin_problem(plugin: str) -> str:
    """Return why a process of the job could not load the plugin; empty if it can."""
    cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    entry = re.search(rf"^\s*{re.escape(plugin)} .*=> (\S+)", cache, re.M)
    if entry is None:
        return (
            f"the loader does not find {plugin}, NCCL's plugin for EFA: check that it is in /opt/amazon/ofi-nccl "
            "(efa_minimum_version)"
        )
    path = entry[1]
    ldd_output = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    if names := missing_libraries(ldd_output):
        return f"{path} cannot be loaded: {', '.join(names)} not found"
    if "not found" in ldd_output:  # only libraries that torch provides
        return ""
    # In a separate process: a damaged library crashes the process that loads it.
    load = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", plugin]
    process = subprocess.run(load, capture_output=True, text=True, check=False)
    if process.returncode == 0:
        return ""
    lines = process.stderr.strip().splitlines() or [f"loading it ends the process with signal {-process.returncode}"]
    return f"{path} cannot be loaded: {lines[-1]}"


def huge_pages_problem(expected: int, meminfo: str) -> str:
    """Return why fewer than `expected` huge pages are reserved; empty if enough are. `meminfo`: /proc/meminfo."""
    match = re.search(r"^HugePages_Total:\s*(\d+)", meminfo, re.M)
    reserved = int(match[1]) if match else 0
    return "" if reserved >= expected else f"{reserved} huge pages are reserved, not {expected} (base_huge_pages)"


def main(arguments: list[str]) -> int:
    """Print all problems, and return the exit status."""
    devices, plugin, timeout_seconds, huge_pages = arguments
    problems = [
        device_problem(int(devices), float(timeout_seconds)),
        plugin_problem(plugin),
        huge_pages_problem(int(huge_pages), Path("/proc/meminfo").read_text()),
    ]
    for problem in filter(None, problems):
        print(problem, file=sys.stderr)
    return int(any(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
