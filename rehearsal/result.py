"""The result of a rehearsal while it runs; the report is built from it at the end."""

from dataclasses import dataclass, field

from rehearsal.audit import Losses
from rehearsal.recovery import find_recoveries
from rehearsal.run_records import RunRecords, workers
from rehearsal.timeline import Timeline
from trainyard.models.report import (
    BackendName,
    Billed,
    CapacityAttempt,
    EngineName,
    FaultInjection,
    LeakedResource,
    NotRehearsed,
    Report,
    Substitution,
)
from trainyard.models.saved import SavedItem


@dataclass
class RehearsalResult:
    """The values of the report, filled in phase by phase, and the timeline for the HTML page."""

    errors: list[str] = field(default_factory=list)
    run: str | None = None
    nodes: int = 0
    resources_created: int = 0
    resources_deleted: int = 0
    retained: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    leaked: tuple[LeakedResource, ...] = ()
    capacity_attempts: tuple[CapacityAttempt, ...] = ()
    billed: tuple[Billed, ...] = ()
    unused_reservations: tuple[Billed, ...] = ()
    faults: tuple[str, ...] = ()
    faults_without_effect: tuple[str, ...] = ()
    injections: tuple[FaultInjection, ...] = ()
    losses: Losses | None = None
    checkpoints: tuple[SavedItem, ...] = ()
    checkpoints_loaded: bool = False
    results: tuple[SavedItem, ...] = ()
    results_uri: str | None = None
    objects: dict[str, int] = field(default_factory=dict)
    substitutions: list[Substitution] = field(default_factory=list)
    not_rehearsed: list[NotRehearsed] = field(default_factory=list)
    timeline: Timeline = field(default_factory=Timeline)

    def build_report(
        self,
        stack: str,
        engine: EngineName,
        backend: BackendName,
        processes_per_node: int,
        phases: dict[str, float],
    ) -> Report:
        """Return the report. `phases` is phase -> seconds."""
        losses, records = self.losses, self.timeline.records or RunRecords()
        first_step = min((line.time for line in records.lines), default=float("inf"))
        return Report(
            ok=not self.errors,
            errors=tuple(self.errors),
            stack=stack,
            backend=backend,
            engine=engine,
            run=self.run,
            nodes=self.nodes,
            processes_per_node=processes_per_node if self.nodes else 0,
            resources_created=self.resources_created,
            resources_deleted=self.resources_deleted,
            retained=self.retained,
            images=self.images,
            leaked=self.leaked,
            capacity_attempts=self.capacity_attempts,
            billed=self.billed,
            unused_reservations=self.unused_reservations,
            faults=self.faults,
            faults_without_effect=self.faults_without_effect,
            injections=self.injections,
            recoveries=tuple(find_recoveries(self.injections, records)),
            replacements=sum(each.launch_time > first_step for each in workers(records.instances)),
            phases=phases,
            first_loss=losses.first if losses else None,
            last_loss=losses.last if losses else None,
            steps=losses.steps if losses else None,
            checkpoints=self.checkpoints,
            checkpoints_loaded=self.checkpoints_loaded,
            results=self.results,
            results_uri=self.results_uri,
            objects=self.objects,
            substitutions=tuple(self.substitutions),
            not_rehearsed=tuple(self.not_rehearsed),
        )
