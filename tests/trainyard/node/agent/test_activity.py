"""Activity of a job: samples and reports."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.polling import eventually
from trainyard.models.events import ActivityEvent
from trainyard.node.agent.activity import (
    IDLE_PERCENT,
    REPORT_SECONDS,
    SAMPLE_SECONDS,
    Activity,
    Reading,
    cpu_meter,
    gpu_meter,
    process_tree_cpu_seconds,
)
from trainyard.node.controller.idle import MAXIMUM_EVENT_AGE_SECONDS, IdleDetector

IDLE, BUSY = Reading("gpu", 0.0), Reading("gpu", 98.0)


def reports(readings: Iterator[Reading | None]) -> list[tuple[float, float | None]]:
    """(time, seconds idle) of each report, for one sample after the other."""
    samples = list(readings)
    times = iter(samples)
    activity = Activity(lambda now: next(times))
    results = []
    for number in range(len(samples)):
        now = 1000 + number * SAMPLE_SECONDS
        if report := activity.sample(now):
            results.append((now, report[1]))
    return results


def test_busy_job_is_not_reported() -> None:
    assert reports(iter([BUSY] * 20)) == []


def test_idle_node_reports_every_minute() -> None:
    minute = round(REPORT_SECONDS / SAMPLE_SECONDS)
    assert reports(iter([IDLE] * (2 * minute + 1))) == [
        (1000 + number * REPORT_SECONDS, number * REPORT_SECONDS) for number in range(3)
    ]


def test_end_of_idleness_is_reported_once() -> None:
    (_, idle_seconds), (_, none) = reports(iter([IDLE, BUSY, BUSY]))
    assert (idle_seconds, none) == (0, None)


def test_unknown_sample_restarts_idleness() -> None:
    results = reports(iter([IDLE] + [None] * 4 + [IDLE]))
    assert results[-1] == (1000 + 5 * SAMPLE_SECONDS, 0)


def test_end_of_idleness_after_an_unknown_sample_is_reported() -> None:
    assert reports(iter([IDLE, None, BUSY]))[-1][1] is None


SLEEPER = "import subprocess, sys, time; print('up', flush=True); time.sleep(60)"
WORKER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True)\\nwhile True: pass"])
child.wait()
"""


@pytest.fixture(params=[SLEEPER, WORKER])
def job(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A job that sleeps, or one whose child computes."""
    with subprocess.Popen(
        [sys.executable, "-c", request.param], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        yield request.param, process.pid
        os.killpg(process.pid, 9)


def test_cpu_time_distinguishes_work_from_sleep(job: tuple[str, int]) -> None:
    code, process = job
    meter = cpu_meter(process, 1)
    assert meter(time.time()) is None
    started_at = time.time()
    if code == WORKER:
        before = process_tree_cpu_seconds(process)
        eventually(lambda: process_tree_cpu_seconds(process) > before + 0.2, "work")
    reading = meter(max(time.time(), started_at + 0.5))
    assert reading is not None
    assert (reading.resource, reading.is_idle) == ("cpu", code == SLEEPER)


def test_exited_process_makes_the_sample_unknown() -> None:
    cpu_seconds = iter([10.0, 4.0])
    meter = cpu_meter(1, 1, lambda _: next(cpu_seconds))
    assert (meter(1.0), meter(2.0)) == (None, None)


def test_cpu_sample_is_the_mean_over_processes() -> None:
    cpu_seconds = iter([0.0, 0.2, 1.0])
    meter = cpu_meter(1, 8, lambda _: next(cpu_seconds))
    readings = [meter(1.0), meter(2.0), meter(3.0)]
    assert [reading and reading.percent for reading in readings] == [None, pytest.approx(2.5), pytest.approx(10.0)]
    assert [reading and reading.is_idle for reading in readings] == [None, True, False]


@pytest.fixture
def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake nvidia-smi on the path."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "nvidia-smi"


def write_smi(fake_smi: Path, text: str) -> None:
    fake_smi.write_text(f"#!/bin/sh\necho \"$*\" > {fake_smi}.arguments\nprintf '{text}'\n")
    fake_smi.chmod(0o755)


def test_gpu_sample_is_the_busiest_gpu(fake_smi: Path) -> None:
    write_smi(fake_smi, "0\\n37\\n2\\n")
    assert gpu_meter()(0.0) == Reading("gpu", 37.0)
    assert Path(f"{fake_smi}.arguments").read_text() == "--query-gpu=utilization.gpu --format=csv,noheader,nounits\n"


@pytest.mark.parametrize("text", ["[N/A]\\n", ""])
def test_gpu_without_utilization_is_not_idle(fake_smi: Path, text: str) -> None:
    write_smi(fake_smi, text)
    assert gpu_meter()(0.0) is None


def test_node_without_nvidia_smi_is_not_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_meter()(0.0) is None


def test_threshold_is_idle_percent() -> None:
    assert Reading("cpu", IDLE_PERCENT - 0.1).is_idle
    assert not Reading("cpu", IDLE_PERCENT).is_idle


def report(node: str, idle_seconds: float | None, *, attempt: int = 1, sequence: int = 0) -> ActivityEvent:
    stamp = {"time": 1.0, "instance": node, "role": "worker", "boot": "0001", "sequence": sequence}
    fields = {"run": "r", "attempt": attempt, "idle_seconds": idle_seconds, "resource": "gpu", "percent": 0.0}
    return ActivityEvent.model_validate(stamp | fields)


def create_detector(*events: ActivityEvent) -> IdleDetector:
    """Detector that received these reports at the time 1000."""
    detector = IdleDetector()
    for event in events:
        detector.update(event, 1000.0)
    return detector


def test_run_is_idle_if_all_nodes_are_idle_for_the_limit() -> None:
    detector = create_detector(report("a", 700.0), report("b", 590.0))
    assert detector.find_idle_reason(1, ["a", "b"], 10.0, 1009.0) is None
    assert "GPU utilization was below" in (detector.find_idle_reason(1, ["a", "b"], 10.0, 1011.0) or "")


def test_node_without_recent_reports_is_not_idle() -> None:
    detector = create_detector(report("a", 1000.0))
    assert detector.find_idle_reason(1, ["a"], 1.0, 1000.0 + MAXIMUM_EVENT_AGE_SECONDS + 1) is None


def test_reports_of_an_earlier_attempt_do_not_count() -> None:
    assert create_detector(report("a", 1000.0)).find_idle_reason(2, ["a"], 1.0, 1000.0) is None


def test_older_report_that_arrives_late_does_not_count() -> None:
    detector = create_detector(report("a", None, sequence=2), report("a", 1000.0, sequence=1))
    assert detector.find_idle_reason(1, ["a"], 1.0, 1000.0) is None
