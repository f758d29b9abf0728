"""Values of the GPUs from NVML, NVIDIA's management library, through its Python package nvidia-ml-py.

DCGM is not read: its health watches judge the same NVML values and Xids, and it needs a daemon that the nodes do not
have (https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html#health-and-diagnostics).
"""

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from trainyard.node.health.rules import (
    GPU_LOST,
    GPU_MEMORY,
    GPU_MISSING,
    NVLINK,
    NVLINK_ERRORS,
    PCIE_REDUCED,
    POWER_BRAKE,
    RECOVERY_REBOOT,
    RECOVERY_RESET,
    ROW_REMAP_FAILED,
    ROW_REMAP_PENDING,
    THERMAL,
    Rule,
)
from trainyard.node.health.sensor import READ_SECONDS, Reading, SensorUnavailableError
from trainyard.quantity import quantity

BUSY_PERCENT = 50  # the generation of an idle GPU's PCIe link is reduced to save power


class Nvml:
    """Reads all GPUs of the node. `gpus`: number of GPUs that the instance type has."""

    name, interval_seconds = "NVML", READ_SECONDS

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._library: Any = None
        self._recoveries: dict[int, int] = {}  # GPU -> NVLink recoveries at the first reading

    def read(self) -> Iterator[Reading]:
        """Return the conditions of all GPUs. Raises SensorUnavailableError without NVIDIA's driver or nvidia-ml-py."""
        nvml = self._open()
        count = nvml.nvmlDeviceGetCount()
        if count < self._gpus:
            text = f"NVML lists {count} of the {self._gpus} GPUs of the instance type."
            yield Reading(GPU_MISSING, None, text)
        links: dict[int, int] = {}
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                for rule, text in self._conditions(nvml, index, handle):
                    yield Reading(rule, f"GPU {index}", text)
                links[index] = self._active_links(nvml, handle)
            except nvml.NVMLError as error:
                if error.value != nvml.NVML_ERROR_GPU_IS_LOST:
                    raise
                yield Reading(GPU_LOST, f"GPU {index}", "NVML: the GPU is lost.")
        maximum = max(links.values(), default=0)
        for index, active in links.items():
            if active < maximum:
                text = f"{active} NVLinks are active, {maximum} on another GPU of the node."
                yield Reading(NVLINK, f"GPU {index}", text)

    def _open(self) -> Any:
        if self._library is None:
            try:
                nvml = import_module("pynvml")
            except ImportError as error:
                raise SensorUnavailableError(str(error)) from error
            try:
                nvml.nvmlInit()
            except nvml.NVMLError as error:
                if error.value in (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED):
                    raise SensorUnavailableError(str(error)) from error
                raise
            self._library = nvml
        return self._library

    def _conditions(self, nvml: Any, index: int, handle: Any) -> Iterator[tuple[Rule, str]]:
        errors = self._value(
            nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        )
        if errors:
            yield GPU_MEMORY, f"{quantity(errors, 'uncorrected ECC error')} since the driver was loaded."
        if rows := self._value(nvml.nvmlDeviceGetRemappedRows, handle):
            corrected, uncorrected, is_pending, has_failed = rows
            remapped = f"{quantity(corrected + uncorrected, 'row')} remapped before"
            if is_pending:
                yield ROW_REMAP_PENDING, f"A memory row waits for its remapping, {remapped}."
            if has_failed:
                yield ROW_REMAP_FAILED, f"The remapping of a memory row has failed, {remapped}."
        yield from self._recovery_action(nvml, index, handle)
        reasons = self._value(nvml.nvmlDeviceGetCurrentClocksEventReasons, handle) or 0
        if reasons & (nvml.nvmlClocksEventReasonSwThermalSlowdown | nvml.nvmlClocksThrottleReasonHwThermalSlowdown):
            celsius = self._value(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
            yield THERMAL, f"The clocks are reduced at {celsius} degrees Celsius."
        if reasons & nvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown:
            yield POWER_BRAKE, "The clocks are reduced by the power brake of the host."
        yield from self._pcie_link(nvml, handle)

    def _recovery_action(self, nvml: Any, index: int, handle: Any) -> Iterator[tuple[Rule, str]]:
        """Recovery action that the driver requests, and growth of the count of NVLink recoveries."""
        fields = [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL]
        values = self._value(nvml.nvmlDeviceGetFieldValues, handle, fields) or []
        action, recoveries = ([value.value.ullVal if value.nvmlReturn == 0 else 0 for value in values] + [0, 0])[:2]
        if action in (nvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET, nvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET):
            yield RECOVERY_RESET, f"The driver requests a reset of the GPU (recovery action {action})."
        elif action in (nvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT, 6, 7):  # bus reset, system reboot: newer drivers
            yield RECOVERY_REBOOT, f"The driver requests a reboot (recovery action {action})."
        grown = recoveries - self._recoveries.setdefault(index, recoveries)
        if grown > 0:
            yield NVLINK_ERRORS, f"NVLinks have recovered {grown} times since the agent started."

    def _pcie_link(self, nvml: Any, handle: Any) -> Iterator[tuple[Rule, str]]:
        width = self._value(nvml.nvmlDeviceGetCurrPcieLinkWidth, handle)
        widest = self._value(nvml.nvmlDeviceGetMaxPcieLinkWidth, handle)
        if width and widest and width < widest:
            yield PCIE_REDUCED, f"The PCIe link has {width} of {widest} lanes."
        generation = self._value(nvml.nvmlDeviceGetCurrPcieLinkGeneration, handle)
        newest = self._value(nvml.nvmlDeviceGetMaxPcieLinkGeneration, handle)
        if generation and newest and generation < newest:
            use = self._value(nvml.nvmlDeviceGetUtilizationRates, handle)
            if use and use.gpu >= BUSY_PERCENT:
                yield PCIE_REDUCED, f"The PCIe link runs at generation {generation} of {newest}, {use.gpu} % busy."

    def _active_links(self, nvml: Any, handle: Any) -> int:
        """Number of active NVLinks. A link that the GPU does not have is not supported, or an invalid argument."""
        active = 0
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = self._value(nvml.nvmlDeviceGetNvLinkState, handle, link)
            if state is None:
                break
            active += state
        return active

    def _value(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Result of an NVML function; None if this GPU or this driver does not support it."""
        nvml = self._library
        try:
            return function(*arguments)
        except nvml.NVMLError as error:
            unsupported = (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_INVALID_ARGUMENT,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            )
            if error.value in unsupported:
                return None
            raise

    def close(self) -> None:
        """Release NVML, which otherwise keeps the GPUs in use."""
        library, self._library = self._library, None
        if library is not None:
            library.nvmlShutdown()
