"""Sensors of GPUs, EFA, disks and memory, on files of a temporary node."""

import ast
import inspect
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rehearsal.hypervisor.process.nvml import pynvml
from trainyard.node.health import nvml as nvml_sensor
from trainyard.node.health import system
from trainyard.node.health.nvml import Nvml
from trainyard.node.health.sensor import Sensor, SensorUnavailableError
from trainyard.node.health.system import Disks, Efa, Memory

VALUES = [
    ({}, None),
    ({"lost": 1}, "gpu-lost"),
    ({"uncorrected_errors": 2}, "gpu-memory-error"),
    ({"remapping_pending": 1}, "row-remap-pending"),
    ({"remapping_failed": 1}, "row-remap-failed"),
    ({"recovery_action": 1}, "recovery-reset"),
    ({"recovery_action": 4}, "recovery-reset"),
    ({"recovery_action": 2}, "recovery-reboot"),
    ({"recovery_action": 3}, None),
    ({"clock_reasons": 0x40}, "thermal-slowdown"),
    ({"clock_reasons": 0x80}, "power-brake"),
    ({"clock_reasons": 0x4}, None),  # the power cap of the GPU itself: normal at full load
    ({"nvlinks": 11}, "nvlink-error"),
    ({"pcie_width": 8}, "pcie-reduced"),
    ({"pcie_generation": 1}, "pcie-reduced"),
    ({"pcie_generation": 1, "utilization": 0}, None),
]


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with the values of the GPUs."""
    monkeypatch.setenv("TRAINYARD_ROOT", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", pynvml)
    file = tmp_path / pynvml.VALUES_FILE
    file.parent.mkdir()
    file.write_text("[{}, {}]")
    return file


def findings(sensor: Sensor) -> list[tuple[str, str | None]]:
    return [(reading.rule.name, reading.device) for reading in sensor.read()]


@pytest.mark.parametrize(("values", "rule"), VALUES)
def test_value_of_a_gpu_matches_its_rule(gpus: Path, values: dict[str, int], rule: str | None) -> None:
    gpus.write_text(json.dumps([{}, values]))
    assert findings(Nvml(2)) == ([] if rule is None else [(rule, "GPU 1")])


def test_missing_gpu_is_a_finding_of_the_node(gpus: Path) -> None:
    assert findings(Nvml(8)) == [("gpu-missing", None)]


def test_only_growth_of_the_recovery_counter_counts(gpus: Path) -> None:
    gpus.write_text(json.dumps([{"nvlink_recoveries": 7}]))
    sensor = Nvml(1)
    assert findings(sensor) == []
    gpus.write_text(json.dumps([{"nvlink_recoveries": 9}]))
    (reading,) = sensor.read()
    assert (reading.rule.name, reading.text) == (
        "nvlink-corrected",
        "NVLinks have recovered 2 times since the agent started.",
    )


def test_nvml_without_driver_or_package_is_unavailable(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.unlink()
    with pytest.raises(SensorUnavailableError):
        list(Nvml(1).read())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(SensorUnavailableError):
        list(Nvml(1).read())


def test_functions_that_a_gpu_does_not_support_are_skipped(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name in vars(pynvml):
        if name.startswith("nvmlDeviceGet") and name not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex"):
            monkeypatch.setattr(pynvml, name, refuse)
    assert findings(Nvml(2)) == []


def test_rehearsed_and_real_nvml_have_the_names_of_the_sensor() -> None:
    tree = ast.parse(inspect.getsource(nvml_sensor))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "nvml"
    } | {"nvmlShutdown"}
    assert len(used) > 20
    assert used <= set(vars(pynvml))
    real = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    assert used <= set(vars(real))
    constants = {name for name in used if isinstance(getattr(pynvml, name), int)}
    assert {name: getattr(real, name) for name in constants} == {name: getattr(pynvml, name) for name in constants}


def write_efa(root: Path, device: str, state: str = "4: ACTIVE", **counters: int) -> None:
    port = root / "sys/class/infiniband" / device / "ports/1"
    (port / "hw_counters").mkdir(parents=True, exist_ok=True)
    (port / "state").write_text(f"{state}\n")
    for name, value in counters.items():
        (port / "hw_counters" / name).write_text(f"{value}\n")


def test_node_without_efa_has_no_findings(tmp_path: Path) -> None:
    assert findings(Efa(0, tmp_path)) == []


def test_missing_device_and_inactive_port_are_reported(tmp_path: Path) -> None:
    write_efa(tmp_path, "rdmap0s6", state="1: DOWN")
    assert findings(Efa(2, tmp_path)) == [("efa-missing", None), ("efa-down", "rdmap0s6")]


def test_error_counter_is_evaluated_by_its_growth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(system, "time", SimpleNamespace(monotonic=lambda: clock.now))
    sensor = Efa(1, tmp_path)
    write_efa(tmp_path, "rdmap0s6", retrans_timeout_events=10**6, rx_drops=0)
    assert findings(sensor) == []
    clock.now = 5.0
    write_efa(tmp_path, "rdmap0s6", retrans_timeout_events=10**6 + 1000, rx_drops=5)
    (reading,) = sensor.read()
    assert (reading.rule.name, reading.device) == ("efa-errors", "rdmap0s6")
    assert reading.text == "retrans_timeout_events grows by 200 a second."


@pytest.mark.parametrize(
    ("state", "rules"),
    [
        ({}, []),
        ({"f_flag": os.ST_RDONLY}, ["filesystem-read-only"]),
        ({"f_bavail": 9}, ["disk-full"]),
        ({"f_favail": 0}, ["disk-full"]),
        ({"f_files": 0, "f_favail": 0}, []),
    ],
)
def test_state_of_a_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, int], rules: list[str]
) -> None:
    healthy = {"f_flag": 0, "f_blocks": 1000, "f_bavail": 500, "f_files": 1000, "f_favail": 500}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**healthy | state))
    assert findings(Disks("/", "/missing", root=tmp_path)) == [(rule, "/") for rule in rules]


def test_low_memory_and_uncorrected_errors_are_reported(tmp_path: Path) -> None:
    sensor = Memory(tmp_path)
    assert findings(sensor) == []
    (tmp_path / "proc").mkdir()
    meminfo = tmp_path / "proc/meminfo"
    meminfo.write_text(
        "MemTotal:       1000 kB\nMemFree:        10 kB\nMemAvailable:        500 kB\nHugePages_Total: 0\n"
    )
    assert findings(sensor) == []
    meminfo.write_text("MemTotal:       1000 kB\nMemAvailable:        20 kB\n")
    controller = tmp_path / "sys/devices/system/edac/mc/mc0"
    controller.mkdir(parents=True)
    (controller / "ue_count").write_text("3\n")
    assert findings(sensor) == [("memory-low", None), ("host-memory-uncorrected", "MC0")]
