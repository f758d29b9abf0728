"""Looks at a job's work: what they see, and what of it is worth a word."""

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
    LOOK_SECONDS,
    TELL_SECONDS,
    Activity,
    Reading,
    cpu_meter,
    gpu_meter,
    tree_seconds,
)
from trainyard.node.controller.idle import FRESH_SECONDS, Idleness

IDLE, BUSY = Reading("gpu", 0.0), Reading("gpu", 98.0)


def told(readings: Iterator[Reading | None]) -> list[tuple[float, float | None]]:
    """(when, idle since) of each word about one look after the other."""
    looks = list(readings)
    times = iter(looks)
    activity = Activity(lambda now: next(times))
    found = []
    for number in range(len(looks)):
        now = 1000 + number * LOOK_SECONDS
        if word := activity.look(now):
            found.append((now, word[1]))
    return found


def test_a_job_at_work_is_not_worth_a_word() -> None:
    assert told(iter([BUSY] * 20)) == []


def test_an_idle_node_says_so_each_minute() -> None:
    minute = round(TELL_SECONDS / LOOK_SECONDS)
    assert told(iter([IDLE] * (2 * minute + 1))) == [(1000 + one * TELL_SECONDS, 1000) for one in range(3)]


def test_work_after_idleness_is_told_once() -> None:
    (_, since), (_, none) = told(iter([IDLE, BUSY, BUSY]))
    assert (since, none) == (1000, None)


def test_what_is_not_known_begins_idleness_anew() -> None:
    words = told(iter([IDLE] + [None] * 4 + [IDLE]))
    assert words[-1] == (1000 + 5 * LOOK_SECONDS, 1000 + 5 * LOOK_SECONDS)


def test_work_after_what_is_not_known_is_told() -> None:
    assert told(iter([IDLE, None, BUSY]))[-1][1] is None


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


def test_processor_time_tells_work_from_sleep(job: tuple[str, int]) -> None:
    code, process = job
    meter = cpu_meter(process, 1)
    assert meter(time.time()) is None
    began = time.time()
    if code == WORKER:
        before = tree_seconds(process)
        eventually(lambda: tree_seconds(process) > before + 0.2, "work")
    reading = meter(max(time.time(), began + 0.5))
    assert reading is not None
    assert (reading.measured, reading.idle) == ("cpu", code == SLEEPER)


def test_a_tree_that_loses_processes_is_not_judged() -> None:
    spent = iter([10.0, 4.0])
    meter = cpu_meter(1, 1, lambda _: next(spent))
    assert (meter(1.0), meter(2.0)) == (None, None)


def test_a_job_of_many_processes_is_idle_by_the_mean() -> None:
    spent = iter([0.0, 0.2, 1.0])
    meter = cpu_meter(1, 8, lambda _: next(spent))
    readings = [meter(1.0), meter(2.0), meter(3.0)]
    assert [one and one.percent for one in readings] == [None, pytest.approx(2.5), pytest.approx(10.0)]
    assert [one and one.idle for one in readings] == [None, True, False]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An nvidia-smi of our own on the path."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "nvidia-smi"


def says(smi: Path, text: str) -> None:
    smi.write_text(f"#!/bin/sh\necho \"$*\" > {smi}.asked\nprintf '{text}'\n")
    smi.chmod(0o755)


def test_the_busiest_gpu_counts(smi: Path) -> None:
    says(smi, "0\\n37\\n2\\n")
    assert gpu_meter()(0.0) == Reading("gpu", 37.0)
    assert Path(f"{smi}.asked").read_text() == "--query-gpu=utilization.gpu --format=csv,noheader,nounits\n"


@pytest.mark.parametrize("text", ["[N/A]\\n", ""])
def test_a_gpu_that_does_not_tell_is_not_idle(smi: Path, text: str) -> None:
    says(smi, text)
    assert gpu_meter()(0.0) is None


def test_a_node_without_nvidia_smi_is_not_idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_meter()(0.0) is None


def test_the_threshold_is_a_few_percent() -> None:
    assert Reading("cpu", IDLE_PERCENT - 0.1).idle
    assert not Reading("cpu", IDLE_PERCENT).idle


def idleness(*words: tuple[str, int, float, float | None]) -> Idleness:
    """What was heard: (node, attempt, when, idle since)."""
    made = Idleness()
    for node, attempt, when, since in words:
        stamp = {"time": when, "instance": node, "role": "worker", "boot": "0001"}
        what = {"run": "r", "attempt": attempt, "idle_since": since, "measured": "gpu", "percent": 0.0}
        made.hear(ActivityEvent.model_validate(stamp | what))
    return made


def test_all_nodes_must_be_idle_as_long_as_the_limit() -> None:
    heard = idleness(("a", 1, 1000.0, 300.0), ("b", 1, 1000.0, 390.0))
    assert heard.over(1, ["a", "b"], 10.0, 980.0) is None
    assert "its GPU use was under" in (heard.over(1, ["a", "b"], 10.0, 991.0) or "")


def test_a_node_that_fell_silent_is_not_idle() -> None:
    assert idleness(("a", 1, 1000.0, 0.0)).over(1, ["a"], 1.0, 1000.0 + FRESH_SECONDS + 1) is None


def test_words_about_an_earlier_attempt_do_not_count() -> None:
    assert idleness(("a", 1, 1000.0, 0.0)).over(2, ["a"], 1.0, 1000.0) is None


def test_an_older_word_that_comes_late_does_not_count() -> None:
    assert idleness(("a", 1, 1000.0, None), ("a", 1, 900.0, 0.0)).over(1, ["a"], 1.0, 1000.0) is None
