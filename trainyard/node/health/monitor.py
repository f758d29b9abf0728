"""Reads all sensors while the node runs, and knows its health at any time."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from trainyard.models.manifest import WorkerGroup
from trainyard.models.node_health import MAX_TEXT, HealthAction, HealthFinding, NodeHealth
from trainyard.node.health.kernel_log import KernelLog
from trainyard.node.health.nvml import Nvml
from trainyard.node.health.rules import RULES, SENSOR_HANGS
from trainyard.node.health.sensor import Reading, Sensor, SensorUnavailableError
from trainyard.node.health.system import Disks, Efa, Memory

HANG_SECONDS = 30.0
STOP_SECONDS = 2.0
LOG = logging.getLogger("health")


@dataclass(frozen=True)
class _Seen:
    """A finding. `time`: monotonic time of its last reading. `is_event`: whether its text is that of an event."""

    finding: HealthFinding
    time: float
    is_event: bool


class HealthMonitor:
    """Reads each sensor in its own daemon thread from `start` to `stop`.

    A sensor that fails is logged once and read again; one that hangs is a finding. Neither stops the others.
    """

    def __init__(self, sensors: Sequence[Sensor], hang_seconds: float = HANG_SECONDS) -> None:
        self._sensors, self._hang_seconds = sensors, hang_seconds
        self._lock = threading.Lock()
        self._read = threading.Condition(self._lock)  # notified after each reading
        self._due = {sensor.name: threading.Event() for sensor in sensors}  # set: read the sensor now
        self._readings = dict.fromkeys(self._due, 0)  # sensor -> number of its readings that have ended
        self._stopping = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self._reading_since: dict[str, float] = {}  # sensor -> monotonic time at which its running reading started
        self._failed: set[str] = set()
        self._findings: dict[tuple[str, str | None], _Seen] = {}  # by rule and device
        self._conditions: dict[str, set[tuple[str, str | None]]] = {}  # sensor -> those that its last reading had

    def start(self) -> None:
        """Start to read the sensors, except those that have been hanging since before `stop`."""
        self._stopping = threading.Event()
        for sensor in self._sensors:
            if sensor.name in self._threads and self._threads[sensor.name].is_alive():
                continue
            arguments, name = (sensor, self._stopping), f"health {sensor.name}"
            self._threads[sensor.name] = threading.Thread(target=self._run, args=arguments, name=name, daemon=True)
            self._threads[sensor.name].start()

    def stop(self) -> None:
        """Stop to read and release the sensors. A sensor that hangs keeps its thread."""
        self._stopping.set()
        for due in self._due.values():
            due.set()
        deadline = time.monotonic() + STOP_SECONDS
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))

    def refresh(self, seconds: float) -> None:
        """Read all sensors now. Return when each has been read, after `seconds` at the latest."""
        with self._read:
            running = [sensor for sensor, thread in self._threads.items() if thread.is_alive()]
            # A reading that has already started may miss the newest event: only the reading after it counts.
            required = {sensor: self._readings[sensor] + 1 + (sensor in self._reading_since) for sensor in running}
            for sensor in running:
                self._due[sensor].set()
            self._read.wait_for(lambda: all(self._readings[name] >= count for name, count in required.items()), seconds)

    def snapshot(self) -> NodeHealth:
        """The findings of the last readings, at once."""
        now = time.monotonic()
        with self._lock:
            hanging = {name: now - since for name, since in self._reading_since.items()}
        for name, seconds in hanging.items():
            if seconds > self._hang_seconds:
                self._record(Reading(SENSOR_HANGS, name, f"{name} has not responded for {seconds:.0f} s."))
        with self._lock:
            for key, seen in list(self._findings.items()):
                expires = RULES[seen.finding.rule].expires_seconds
                if expires is not None and now - seen.time > expires:
                    del self._findings[key]
            return NodeHealth().merged([seen.finding for seen in self._findings.values()])

    def forget(self, action: HealthAction) -> None:
        """Drop the findings of an action that was carried out. A condition that still holds is found again."""
        with self._lock:
            self._findings = {key: seen for key, seen in self._findings.items() if seen.finding.action != action}

    def _run(self, sensor: Sensor, stopping: threading.Event) -> None:
        due = self._due[sensor.name]
        due.clear()  # never between the check of `stopping` and the wait, which `stop` must end
        while not stopping.is_set():
            with self._lock:
                self._reading_since[sensor.name] = time.monotonic()
            try:
                conditions = set[tuple[str, str | None]]()
                for reading in sensor.read():
                    self._record(reading)
                    if reading.time is None:
                        conditions.add((reading.rule.name, reading.device))
                self._end_conditions(sensor.name, conditions)
                self._failed.discard(sensor.name)
            except SensorUnavailableError as error:
                LOG.info("%s is not read: %s", sensor.name, error)
                break
            except Exception as error:
                if sensor.name not in self._failed:
                    self._failed.add(sensor.name)
                    LOG.error("%s cannot be read: %s: %s", sensor.name, type(error).__name__, error)
            finally:
                with self._read:
                    self._reading_since.pop(sensor.name, None)
                    self._readings[sensor.name] += 1
                    self._read.notify_all()
            due.wait(sensor.interval_seconds)
            due.clear()
        try:
            sensor.close()
        except Exception as error:
            LOG.error("%s cannot be closed: %s: %s", sensor.name, type(error).__name__, error)

    def _end_conditions(self, sensor: str, conditions: set[tuple[str, str | None]]) -> None:
        """Drop the conditions of a sensor that hold no more, such as a device that was missing during the boot.

        Those of rules with `expires_seconds` expire later. A sensor that fails ends none.
        """
        with self._lock:
            for key in self._conditions.get(sensor, set()) - conditions:
                seen = self._findings.get(key)
                if seen is not None and not seen.is_event and RULES[key[0]].expires_seconds is None:
                    del self._findings[key]
            self._conditions[sensor] = conditions

    def _record(self, reading: Reading) -> None:
        """Add a reading to the findings, and log it if it is new. An event is a better reason than a condition."""
        rule, key, is_event = reading.rule, (reading.rule.name, reading.device), reading.time is not None
        with self._lock:
            known = self._findings.get(key)
            text, count, first = reading.text[:MAX_TEXT], 1, reading.time or time.time()
            if known is not None:
                text = known.finding.text if known.is_event and not is_event else text
                count, first = known.finding.count + (is_event and known.is_event), known.finding.time
            finding = HealthFinding(
                rule=rule.name, action=rule.action, device=reading.device, text=text, time=first, count=count
            )
            self._findings[key] = _Seen(finding, time.monotonic(), is_event or (known is not None and known.is_event))
        if known is None:
            level = logging.INFO if rule.action == "none" else logging.WARNING
            LOG.log(level, "%s, %s: %s (action: %s)", finding.device or "node", rule.name, finding.text, rule.action)


def create_monitor(group: WorkerGroup) -> HealthMonitor:
    """The monitor of a worker of this group."""
    sensors: list[Sensor] = [KernelLog(), Disks("/", "/opt/trainyard/scratch"), Memory(), Efa(group.efa_interfaces)]
    if group.gpus:
        sensors.append(Nvml(group.gpus))
    return HealthMonitor(sensors)
