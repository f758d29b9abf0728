"""Reads the CLI's event log (`--event-log`): the operations on resources, and the errors.

The log has one JSON object per line. Source of its format: sdk/go/common/apitype/events.go of
github.com/pulumi/pulumi.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rehearsal.adapter.deployment import Event, EventKind
from rehearsal.engine.state import PROVIDER_TYPE

_START_KINDS: dict[str, EventKind] = {
    "create": "creating",
    "create-replacement": "creating",
    "update": "updating",
    "delete": "deleting",
    "delete-replaced": "deleting",
}
_END_KINDS: dict[str, EventKind] = {
    "create": "created",
    "create-replacement": "created",
    "import": "imported",
    "update": "updated",
    "delete": "deleted",
    "delete-replaced": "deleted",
}
# JSON that a command returns to the program on stdout: at the end of its last line of stderr, or on a separate line.
_JSON_OUTPUT = re.compile(r"\{\".*$")
# Messages that the engine adds to an error that it has already reported.
_REPEATED = ("update failed", "preview failed", "an unhandled error occurred: program exited")
CRASHED = "Program failed with an unhandled exception"


class EngineLog:
    """An event log, which can be read while the CLI writes it.

    `planned`: URN -> type of the resources that are created or imported. `seconds`: URN -> duration of the operation.
    `errors`: pairs of URN (or "") and message, in order.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._start_times: dict[str, float] = {}
        self.planned: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.errors: list[tuple[str, str]] = []

    def events(self) -> Iterator[Event]:
        """Yield the events since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # the line is incomplete
                self._offset += len(line)
                yield from self._event(json.loads(line))

    def _event(self, entry: dict[str, Any]) -> Iterator[Event]:
        if diagnostic := entry.get("diagnosticEvent"):
            yield from self._diagnostic(diagnostic)
        elif started := entry.get("resourcePreEvent"):
            yield from self._step(started["metadata"], _START_KINDS)
        elif ended := entry.get("resOutputsEvent"):
            yield from self._step(ended["metadata"], _END_KINDS)

    def _step(self, step: dict[str, Any], kinds: dict[str, EventKind]) -> Iterator[Event]:
        state, urn = step["new"] or step["old"] or {}, step["urn"]
        if not state.get("custom") or step["op"] not in _END_KINDS or step["type"].startswith(PROVIDER_TYPE):
            return
        if kinds is _START_KINDS:
            self._start_times[urn] = time.monotonic()
            if step["op"] in ("create", "import"):
                self.planned[urn] = step["type"]
        else:
            self.seconds[urn] = time.monotonic() - self._start_times.get(urn, time.monotonic())
        kind = kinds.get(step["op"])
        if kind in ("deleting", "deleted") and state.get("retainOnDelete"):
            kind = "retained" if kinds is _END_KINDS else None
        if kind is not None:
            yield _create_event(kind, urn, seconds=self.seconds.get(urn, 0.0))

    def _diagnostic(self, diagnostic: dict[str, Any]) -> Iterator[Event]:
        urn, message = diagnostic.get("urn", ""), diagnostic["message"].rstrip("\n")
        if diagnostic["severity"] == "error":
            if not message.startswith(_REPEATED):
                self.errors.append((urn, message))
                if urn:
                    event = _create_event("failed", urn, text=message)
                    owner = f"{event.type} {event.name}"  # a plugin's message may not name the resource
                    yield event if message.startswith(owner) else replace(event, text=f"{owner}: {message}")
        elif diagnostic["severity"].startswith("info") and urn:
            for line in message.splitlines():
                if text := _JSON_OUTPUT.sub("", line):
                    yield _create_event("output", urn, text=text)


def _create_event(kind: EventKind, urn: str, seconds: float = 0.0, text: str = "") -> Event:
    types, _, name = urn.split("::", 2)[2].partition("::")
    return Event(kind=kind, urn=urn, type=types.rpartition("$")[2], name=name, seconds=seconds, text=text)
