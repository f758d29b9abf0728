"""NVML on a rehearsed GPU node: takes the place of the module of nvidia-ml-py, whose functions and constants it copies.

The hypervisor puts this folder on the module path of nodes with GPUs. The values are those of the node's file
run/nvml.json, which the fault `gpu` changes: names and meanings as in NVML's API reference,
https://docs.nvidia.com/deploy/nvml-api/. Standard library only.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_ERROR_INVALID_ARGUMENT = 2
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_IN_USE = 19
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_TEMPERATURE_GPU = 0
NVML_NVLINK_MAX_LINKS = 36
NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL = 59
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
NVML_GPU_RECOVERY_ACTION_GPU_RESET = 1
NVML_GPU_RECOVERY_ACTION_NODE_REBOOT = 2
NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET = 4
nvmlClocksEventReasonSwThermalSlowdown = 0x20  # noqa: N816 (NVML's names, here and below)
nvmlClocksThrottleReasonHwThermalSlowdown = 0x40  # noqa: N816
nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80  # noqa: N816
VALUES_FILE = "run/nvml.json"
# Values of a healthy GPU; the file has those that differ.
HEALTHY: dict[str, int] = {
    "lost": 0,
    "uncorrected_errors": 0,
    "remapped_rows": 0,
    "remapping_pending": 0,
    "remapping_failed": 0,
    "recovery_action": 0,
    "clock_reasons": 0,
    "celsius": 45,
    "nvlinks": 12,
    "nvlink_recoveries": 0,
    "pcie_width": 16,
    "pcie_generation": 4,
    "utilization": 90,
}


class NVMLError(Exception):
    """An error code of NVML."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


def _gpus() -> list[dict[str, int]]:
    file = Path(os.environ["TRAINYARD_ROOT"]) / VALUES_FILE
    if not file.exists():
        raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED)
    return [HEALTHY | gpu for gpu in json.loads(file.read_text())]


def nvmlInit() -> None:  # noqa: N802 (NVML's names, here and below)
    """Raise NVMLError if the node has no GPUs."""
    _gpus()


def nvmlShutdown() -> None:  # noqa: N802
    """Nothing is open."""


def nvmlDeviceGetCount() -> int:  # noqa: N802
    """Return the number of GPUs."""
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index: int) -> dict[str, int]:  # noqa: N802
    """Return the values of a GPU. Raises NVMLError if it has fallen off the bus."""
    gpu = _gpus()[index]
    if gpu["lost"]:
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    return gpu


def nvmlDeviceGetTotalEccErrors(handle: dict[str, int], error_type: int, counter: int) -> int:  # noqa: N802
    """Return the number of uncorrected ECC errors since the driver was loaded."""
    return handle["uncorrected_errors"]


def nvmlDeviceGetRemappedRows(handle: dict[str, int]) -> tuple[int, int, int, int]:  # noqa: N802
    """Return rows remapped after corrected and uncorrected errors, and whether a remapping is pending or has failed."""
    return 0, handle["remapped_rows"], handle["remapping_pending"], handle["remapping_failed"]


def nvmlDeviceGetCurrentClocksEventReasons(handle: dict[str, int]) -> int:  # noqa: N802
    """Return the reasons for which the clocks are reduced, as bits."""
    return handle["clock_reasons"]


def nvmlDeviceGetTemperature(handle: dict[str, int], sensor: int) -> int:  # noqa: N802
    """Return the temperature, degrees Celsius."""
    return handle["celsius"]


def nvmlDeviceGetFieldValues(handle: dict[str, int], fields: list[int]) -> list[Any]:  # noqa: N802
    """Return the values of fields."""
    names = {
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: "recovery_action",
        NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL: "nvlink_recoveries",
    }
    return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=handle[names[field]])) for field in fields]


def nvmlDeviceGetNvLinkState(handle: dict[str, int], link: int) -> int:  # noqa: N802
    """Return whether an NVLink is active."""
    if link >= HEALTHY["nvlinks"]:
        raise NVMLError(NVML_ERROR_INVALID_ARGUMENT)
    return int(link < handle["nvlinks"])


def nvmlDeviceGetCurrPcieLinkWidth(handle: dict[str, int]) -> int:  # noqa: N802
    """Return the number of PCIe lanes in use."""
    return handle["pcie_width"]


def nvmlDeviceGetMaxPcieLinkWidth(handle: dict[str, int]) -> int:  # noqa: N802
    """Return the number of PCIe lanes that GPU and host support."""
    return HEALTHY["pcie_width"]


def nvmlDeviceGetCurrPcieLinkGeneration(handle: dict[str, int]) -> int:  # noqa: N802
    """Return the PCIe generation in use."""
    return handle["pcie_generation"]


def nvmlDeviceGetMaxPcieLinkGeneration(handle: dict[str, int]) -> int:  # noqa: N802
    """Return the PCIe generation that GPU and host support."""
    return HEALTHY["pcie_generation"]


def nvmlDeviceGetUtilizationRates(handle: dict[str, int]) -> Any:  # noqa: N802
    """Return the utilization, percent."""
    return SimpleNamespace(gpu=handle["utilization"])
