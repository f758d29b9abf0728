"""Files of a health check that another program has written, or that it has deleted or replaced."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainyard.node.agent.health_check import find_faults, merge_measurements
from trainyard.node.agent.health_check_files import find_logs, read_logs, read_reports
from trainyard.node.health_check.nccl_log import Network, slowest_network
from trainyard.node.health_check.stages import MATMUL

VALID = {"stage": MATMUL, "gpus": 8, "seconds": {"start torch": 3.2}, "matmul_tflops": 240.5, "file": None}
INVALID: dict[str, Any] = {
    "no object": [1],
    "number of GPUs": VALID | {"gpus": "many"},
    "negative number of GPUs": VALID | {"gpus": -1},
    "names of GPUs": VALID | {"gpu_names": 5},
    "throughput": VALID | {"matmul_tflops": "fast"},
    "negative throughput": VALID | {"network_gbs": -1.0},
    "not a number": VALID | {"nvlink_gbs": float("nan")},
    "peers": VALID | {"missing_peers": [1]},
    "stage": VALID | {"stage": None},
    "version": VALID | {"torch": 2},
}
REPLACEMENTS: dict[str, Callable[[Path, Path], object]] = {
    "deleted": lambda folder, _: None,
    "file": lambda folder, _: folder.touch(),
    "link": lambda folder, other: folder.symlink_to(other),
    "link to itself": lambda folder, _: folder.symlink_to(folder),
}


@pytest.mark.parametrize("content", [*map(json.dumps, INVALID.values()), "", "{", "[" * 60_000, "\0"])
def test_an_invalid_report_is_ignored(tmp_path: Path, content: str) -> None:
    (tmp_path / "process-0.json").write_text(content)
    (tmp_path / "process-1.json").write_text(json.dumps(VALID))
    reports = read_reports(tmp_path, 2)
    assert [report.file.name for report in reports] == ["process-1.json"]
    assert merge_measurements(reports, Network(), 1.0).matmul_tflops == 240.0


def test_reports_of_other_processes_are_ignored(tmp_path: Path) -> None:
    for name in ("process-0.json", "process-7.json", "process-x.json"):
        (tmp_path / name).write_text(json.dumps(VALID))
    reports = read_reports(tmp_path, 2)
    assert [report.file.name for report in reports] == ["process-0.json"]
    (fault,) = find_faults(reports, 2, (), "", 1.0, "i-1").faults
    assert fault.text == "process 0 did not complete: multiply matrices"


@pytest.mark.parametrize("replacement", REPLACEMENTS)
def test_a_replaced_folder_has_no_reports_and_no_logs(tmp_path: Path, replacement: str) -> None:
    reports, other = tmp_path / "reports", tmp_path / "other"
    for folder in (reports, other):
        folder.mkdir()
        (folder / "process-0.json").write_text(json.dumps(VALID))
        (folder / "nccl.host.1").write_text("NCCL INFO Using network Socket")
    shutil.rmtree(reports)
    REPLACEMENTS[replacement](reports, other)
    assert (read_reports(reports, 2), find_logs(reports, 2), read_logs(reports, 2)) == ([], [], [])


def test_one_log_of_each_process_is_read(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"nccl.host.{number}").write_text("NCCL INFO Using network Socket\n")
    assert len(read_logs(tmp_path, 8)) == 8


@pytest.mark.parametrize(
    "log",
    [
        f"NCCL INFO NET/OFI Selected provider is efa (found {'9' * 5000} nics)",
        f"NCCL INFO Using network x{' ' * 200_000}y",
    ],
)
def test_a_log_with_long_values_is_read(log: str) -> None:
    network = slowest_network([log])
    assert network.devices is None
    assert len(network.name or "") <= 100
