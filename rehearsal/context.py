"""What every part of a rehearsal works on."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rehearsal.adapter.graph import Deployment, Event
from rehearsal.aws.process import EmulatedAws
from rehearsal.disk_reserve import Reserve
from rehearsal.display import Show
from rehearsal.interrupts import Interrupts
from rehearsal.phases import PhaseClock
from rehearsal.result import Findings
from rehearsal.workspace import Options
from trainyard.config.settings import StackSettings


@dataclass
class Scene:
    """One rehearsal. `deployment`: what stands of the program, from the moment when something may."""

    options: Options
    config: dict[str, Any]
    settings: StackSettings
    aws: EmulatedAws
    show: Show
    clock: PhaseClock
    found: Findings
    interrupts: Interrupts
    reserve: Reserve
    deployment: Deployment | None = None
    account_died: bool = False

    def fail(self, message: str) -> None:
        if self.account_died:
            return  # it was told, and all else follows from it
        if died := self.aws.died():
            self.account_died, message = True, f"{died}. It was seen by this: {message}"
        elif self.reserve.gives_way():
            advice = f"the disk is full: make room for {self.options.folder} and run it again"
            message = f"{advice}. It was seen by this: {message}"
        self.found.errors.append(message)
        self.show.line("failed", message)

    @contextmanager
    def bearing(self, what: str) -> Iterator[None]:
        """A part of the end that stands in no other's way: whatever breaks in it is an error of the report."""
        try:
            yield
        except Exception as error:
            self.fail(f"{what}: {type(error).__name__}: {error}")

    def tell(self, event: Event) -> None:
        match event.kind:
            case "line":
                self.show.line(event.name, event.text)
            case "creating" | "deleting":
                self.show.detail("resources", f"{event.kind} {event.type} {event.name}")
            case "adopted":
                self.show.line("resources", f"adopted {event.type} {event.name} of an earlier up")
            case "failed":
                self.show.line("resources", f"failed: {event.text.splitlines()[0]}")
            case _:
                self.show.detail("resources", f"{event.kind} {event.type} {event.name}, {event.seconds:.1f} s")
