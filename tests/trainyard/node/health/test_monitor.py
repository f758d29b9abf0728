"""The monitor of a node's health: findings, counts, expiration, and sensors that fail or hang."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import pytest

from tests.polling import eventually
from trainyard.node.health.monitor import HealthMonitor
from trainyard.node.health.rules import RULES
from trainyard.node.health.sensor import Reading, SensorUnavailableError

LOST = Reading(RULES["gpu-lost"], "GPU 3", "Xid 79: GPU has fallen off the bus.", 1000.0)
HOT = Reading(RULES["thermal-slowdown"], "GPU 0", "The clocks are reduced at 90 degrees Celsius.")
MEMORY = Reading(RULES["gpu-memory-error"], "GPU 2", "Xid 94: Contained memory error.", 1000.0)
PENDING = Reading(RULES["row-remap-pending"], "GPU 1", "A memory row waits for its remapping.")


class ListSensor:
    """A sensor whose readings are those of a function."""

    interval_seconds = 0.01

    def __init__(self, read: Callable[[], Iterable[Reading]], name: str = "test") -> None:
        self.name, self.read = name, read
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def start() -> Iterator[Callable[..., HealthMonitor]]:
    """Start a monitor of sensors, and stop it after the test."""
    monitors: list[HealthMonitor] = []

    def start(*sensors: ListSensor, hang_seconds: float = 30.0) -> HealthMonitor:
        monitors.append(HealthMonitor(sensors, hang_seconds))
        monitors[-1].start()
        return monitors[-1]

    yield start
    for each in monitors:
        each.stop()


def rules(monitor: HealthMonitor) -> list[str]:
    return [finding.rule for finding in monitor.snapshot().findings]


Start = Callable[..., HealthMonitor]


def test_findings_of_all_sensors_are_in_the_snapshot_ordered_by_severity(start: Start) -> None:
    monitor = start(ListSensor(lambda: [HOT], "a"), ListSensor(lambda: [LOST, PENDING], "b"))
    eventually(lambda: len(rules(monitor)) == 3, "the findings")
    assert rules(monitor) == ["gpu-lost", "row-remap-pending", "thermal-slowdown"]
    assert monitor.snapshot().worst_action == "replace"


def test_refresh_returns_after_a_new_reading(start: Start) -> None:
    events: list[Reading] = []
    sensor = ListSensor(lambda: list(events))
    sensor.interval_seconds = 60.0
    monitor = start(sensor)
    monitor.refresh(5.0)
    assert rules(monitor) == []
    events.append(LOST)
    monitor.refresh(5.0)
    assert rules(monitor) == ["gpu-lost"]


def test_refresh_does_not_wait_for_a_hanging_sensor(start: Start) -> None:
    released, ended = threading.Event(), threading.Event()

    def hang() -> list[Reading]:
        released.wait(30)
        ended.set()
        return []

    start(ListSensor(hang)).refresh(0.05)
    assert not ended.is_set()
    released.set()


def test_events_are_counted_and_conditions_are_not(start: Start) -> None:
    batches = [[LOST, HOT], [LOST, HOT], []]
    monitor = start(ListSensor(lambda: batches.pop(0) if batches else []))
    eventually(lambda: not batches, "the readings")
    assert {finding.rule: finding.count for finding in monitor.snapshot().findings} == {
        "gpu-lost": 2,
        "thermal-slowdown": 1,
    }
    assert monitor.snapshot().findings[0].time == 1000.0


def test_condition_does_not_replace_the_text_of_an_event(start: Start) -> None:
    condition = Reading(LOST.rule, LOST.device, "NVML: the GPU is lost.")
    batches = [[condition], [LOST], [condition]]
    texts: list[str] = []

    def read() -> Iterator[Reading]:
        yield from batches.pop(0) if batches else []
        texts.extend(finding.text for finding in monitor.snapshot().findings)

    monitor = HealthMonitor((ListSensor(read),))
    monitor.start()
    eventually(lambda: len(texts) >= 3, "the readings")
    monitor.stop()
    assert texts[:3] == [condition.text, LOST.text, LOST.text]
    assert monitor.snapshot().findings[0].count == 1


def test_new_finding_is_logged_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    readings = 0

    def read() -> list[Reading]:
        nonlocal readings
        readings += 1
        return [LOST]

    with caplog.at_level(logging.INFO):
        start(ListSensor(read))
        eventually(lambda: readings > 3, "several readings")
    assert caplog.messages == ["GPU 3, gpu-lost: Xid 79: GPU has fallen off the bus. (action: replace)"]


def test_transient_finding_expires(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [[HOT, LOST]]
    monitor = start(ListSensor(lambda: batches.pop() if batches else []))
    eventually(lambda: len(rules(monitor)) == 2, "the findings")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 61)
    assert rules(monitor) == ["gpu-lost"]


def test_hanging_sensor_stops_nothing_and_becomes_a_finding(start: Start) -> None:
    release = threading.Event()

    def hang() -> list[Reading]:
        release.wait(20)
        return []

    monitor = start(ListSensor(hang, "NVML"), ListSensor(lambda: [LOST], "log"), hang_seconds=0.05)
    eventually(lambda: rules(monitor) == ["gpu-lost", "sensor-hangs"], "the finding of the other sensor, and the hang")
    release.set()


def test_failing_sensor_is_read_again_and_logged_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    results: list[Exception | list[Reading]] = [OSError("broken"), OSError("broken"), [LOST]]

    def read() -> list[Reading]:
        result = results.pop(0) if results else []
        if isinstance(result, Exception):
            raise result
        return result

    with caplog.at_level(logging.ERROR):
        monitor = start(ListSensor(read))
        eventually(lambda: rules(monitor) == ["gpu-lost"], "the finding")
    assert caplog.messages == ["test cannot be read: OSError: broken"]


def test_unavailable_sensor_is_not_read_again(start: Start) -> None:
    readings: list[int] = []

    def read() -> list[Reading]:
        readings.append(1)
        raise SensorUnavailableError("no driver")

    sensor = ListSensor(read)
    start(sensor)
    eventually(lambda: sensor.closed == 1, "the end of the sensor")
    assert len(readings) == 1


def test_repaired_findings_are_forgotten(start: Start) -> None:
    batches = [[MEMORY, LOST]]
    monitor = start(ListSensor(lambda: batches.pop() if batches else []))
    eventually(lambda: len(rules(monitor)) == 2, "the findings")
    monitor.forget("reset")
    assert rules(monitor) == ["gpu-lost"]


def test_stopped_monitor_releases_its_sensors_and_can_be_started_again(start: Start) -> None:
    sensor = ListSensor(lambda: [HOT])
    monitor = start(sensor)
    eventually(lambda: bool(rules(monitor)), "the finding")
    monitor.stop()
    assert sensor.closed == 1
    monitor.forget("warn")
    monitor.start()
    eventually(lambda: rules(monitor) == ["thermal-slowdown"], "the finding after the restart")


def test_condition_ends_when_its_sensor_does_not_see_it_any_more(start: Start) -> None:
    readings = [PENDING, LOST]
    monitor = start(ListSensor(lambda: readings))
    eventually(lambda: rules(monitor) == ["gpu-lost", "row-remap-pending"], "both findings")
    readings = []
    eventually(lambda: rules(monitor) == ["gpu-lost"], "the end of the condition; the event remains")


def test_sensor_that_fails_ends_no_condition(start: Start) -> None:
    calls: list[int] = []

    def read() -> list[Reading]:
        calls.append(1)
        if len(calls) > 1:
            raise OSError("NVML: unknown error")
        return [PENDING]

    monitor = start(ListSensor(read))
    eventually(lambda: len(calls) > 3, "more readings")
    assert rules(monitor) == ["row-remap-pending"]
