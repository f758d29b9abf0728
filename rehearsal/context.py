"""The objects that all parts of one rehearsal share."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rehearsal.adapter.deployment import Deployment, Event
from rehearsal.aws.faults import Fault
from rehearsal.aws.process import EmulatedAws
from rehearsal.disk_reserve import DiskReserve
from rehearsal.display import Display
from rehearsal.interrupts import Interrupts
from rehearsal.phases import PhaseClock
from rehearsal.result import RehearsalResult
from rehearsal.run_faults.injection import ScheduledFault
from rehearsal.run_faults.job import RunFault
from rehearsal.workspace import Options
from trainyard.config.settings import StackSettings


@dataclass
class Context:
    """The shared state of one rehearsal.

    `deployment` is set as soon as the Pulumi program may have created a resource. `account_exited` is set once an error
    has reported that the emulated AWS has exited.
    """

    options: Options
    config: dict[str, Any]
    settings: StackSettings
    aws: EmulatedAws
    display: Display
    clock: PhaseClock
    result: RehearsalResult
    interrupts: Interrupts
    disk_reserve: DiskReserve
    deployment: Deployment | None = None
    account_exited: bool = False
    run_faults_without_effect: tuple[ScheduledFault, ...] = field(init=False)
    _in_progress: dict[str, str] = field(default_factory=dict)  # resource -> operation, the oldest first

    @property
    def account_faults(self) -> tuple[Fault, ...]:
        """The faults of the options that affect the account, at once or later."""
        scheduled = (each.fault for each in self.options.run_faults)
        return (*self.options.faults, *(fault for fault in scheduled if not isinstance(fault, RunFault)))

    def __post_init__(self) -> None:
        self.run_faults_without_effect = self.options.run_faults

    def add_error(self, message: str, reference: str | None = None) -> None:
        """Add an error to the report and print it. `reference`: printed instead where the terminal has the message.

        If the emulated AWS has exited or the disk is full, the message starts with that cause.
        """
        if self.account_exited:
            return  # the cause is already reported; all later errors follow from it
        if exit_reason := self.aws.exit_reason():
            self.account_exited, message, reference = True, f"{exit_reason}. First error: {message}", None
        elif self.disk_reserve.release_if_disk_full():
            cause = f"the disk of {self.options.folder} is full. Free some space and run the rehearsal again"
            message, reference = f"{cause}. First error: {message}", None
        self.result.errors.append(message)
        self.display.print_line("failed", reference or message)

    @contextmanager
    def recording_errors(self, description: str) -> Iterator[None]:
        """Report an exception in the block as an error that starts with `description`; continue after the block."""
        try:
            yield
        except Exception as error:
            self.add_error(f"{description}: {type(error).__name__}: {error}")

    def print_event(self, event: Event) -> None:
        """Print an event of a resource, or show it in the status line."""
        if event.kind not in ("output", "creating", "updating", "deleting"):
            self._in_progress.pop(f"{event.type} {event.name}", None)
        match event.kind:
            case "output":  # without the clock of the command, which started later
                subject = "destroy" if self.clock.current == "destroy" else event.name
                text = re.sub(r"^ *\d+\.\d s  ", "", event.text)
                self.display.print_line(subject, text)
                self.display.update_status(subject, " ".join(text.split()))
            case "creating" | "updating" | "deleting":
                self._in_progress[f"{event.type} {event.name}"] = event.kind
                self._show_operation(f"{event.kind} {event.type} {event.name}")
            case "imported":
                self.display.print_line("resources", f"imported {event.type} {event.name} from an earlier deployment")
            case "failed":
                self.display.print_line("resources", f"failed: {event.text.splitlines()[0]}")
            case _:
                self._show_operation(f"{event.kind} {event.type} {event.name}, {event.seconds:.1f} s")

    def _show_operation(self, event: str) -> None:
        """Show the operation that has been in progress for the longest time, or the last event."""
        oldest = next(iter(self._in_progress.items()), None)
        self.display.update_status("resources", f"{oldest[1]} {oldest[0]}" if oldest else event)
