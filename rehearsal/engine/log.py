"""The CLI's log of engine events (`--event-log`): what it did to which resource, and what went wrong.

One JSON object a line, as sdk/go/common/apitype/events.go of github.com/pulumi/pulumi has them.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rehearsal.adapter.graph import Event, EventKind
from rehearsal.engine.state import PROVIDER_TYPE

_BEGUN: dict[str, EventKind] = {
    "create": "creating",
    "create-replacement": "creating",
    "update": "updating",
    "delete": "deleting",
    "delete-replaced": "deleting",
}
_DONE: dict[str, EventKind] = {
    "create": "created",
    "create-replacement": "created",
    "import": "adopted",
    "update": "updated",
    "delete": "deleted",
    "delete-replaced": "deleted",
}
_ANSWER = re.compile(
    r"\{\".*$"
)  # what a command answers to the program, in the line of its last word or in one of its own
# What the engine says beside an error that has been told: no news.
_EMPTY = ("update failed", "preview failed", "an unhandled error occurred: program exited")
CRASHED = "Program failed with an unhandled exception"


class EngineLog:
    """Read while it grows. `errors`: (urn or "", message), in their order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._began: dict[str, float] = {}
        self.planned: dict[str, str] = {}  # urn -> type, of what is made or adopted
        self.seconds: dict[str, float] = {}
        self.errors: list[tuple[str, str]] = []

    def events(self) -> Iterator[Event]:
        """What was written since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # still being written
                self._read += len(line)
                yield from self._event(json.loads(line))

    def _event(self, entry: dict[str, Any]) -> Iterator[Event]:
        if told := entry.get("diagnosticEvent"):
            yield from self._told(told)
        elif begun := entry.get("resourcePreEvent"):
            yield from self._step(begun["metadata"], _BEGUN)
        elif done := entry.get("resOutputsEvent"):
            yield from self._step(done["metadata"], _DONE)

    def _step(self, step: dict[str, Any], kinds: dict[str, EventKind]) -> Iterator[Event]:
        state, urn = step["new"] or step["old"] or {}, step["urn"]
        if not state.get("custom") or step["op"] not in _DONE or step["type"].startswith(PROVIDER_TYPE):
            return
        if kinds is _BEGUN:
            self._began[urn] = time.monotonic()
            if step["op"] in ("create", "import"):
                self.planned[urn] = step["type"]
        else:
            self.seconds[urn] = time.monotonic() - self._began.get(urn, time.monotonic())
        kind = kinds.get(step["op"])
        if kind in ("deleting", "deleted") and state.get("retainOnDelete"):
            kind = "retained" if kinds is _DONE else None
        if kind is not None:
            yield _of(kind, urn, seconds=self.seconds.get(urn, 0.0))

    def _told(self, told: dict[str, Any]) -> Iterator[Event]:
        urn, message = told.get("urn", ""), told["message"].rstrip("\n")
        if told["severity"] == "error":
            if not message.startswith(_EMPTY):
                self.errors.append((urn, message))
                if urn:
                    failed = _of("failed", urn, text=message)
                    owner = f"{failed.type} {failed.name}"  # a plugin's own words need not name it
                    yield failed if message.startswith(owner) else replace(failed, text=f"{owner}: {message}")
        elif told["severity"].startswith("info") and urn:
            for line in message.splitlines():
                if text := _ANSWER.sub("", line):
                    yield _of("line", urn, text=text)


def _of(kind: EventKind, urn: str, seconds: float = 0.0, text: str = "") -> Event:
    types, _, name = urn.split("::", 2)[2].partition("::")
    return Event(kind=kind, urn=urn, type=types.rpartition("$")[2], name=name, seconds=seconds, text=text)
