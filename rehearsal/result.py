"""What a rehearsal found out, gathered on the way: the report in the making."""

from dataclasses import dataclass, field

from rehearsal.audit import Losses
from rehearsal.timeline import Story
from trainyard.models.report import BackendName, Billed, EngineName, LostResource, NotRehearsed, Report, Scaled


@dataclass
class Findings:
    """What the report will say, filled in as the run goes along."""

    errors: list[str] = field(default_factory=list)
    run: str | None = None
    nodes: int = 0
    created: int = 0
    deleted: int = 0
    retained: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    leaked: tuple[LostResource, ...] = ()
    billed: tuple[Billed, ...] = ()
    faults: tuple[str, ...] = ()
    losses: Losses | None = None
    checkpoints: tuple[str, ...] = ()
    results_uri: str | None = None
    objects: dict[str, int] = field(default_factory=dict)
    scaled: list[Scaled] = field(default_factory=list)
    not_rehearsed: list[NotRehearsed] = field(default_factory=list)
    story: Story = field(default_factory=Story)

    def report(
        self,
        stack: str,
        engine: EngineName,
        backend: BackendName,
        processes_per_node: int,
        phases: dict[str, float],
    ) -> Report:
        losses = self.losses
        return Report(
            ok=not self.errors,
            errors=tuple(self.errors),
            stack=stack,
            backend=backend,
            engine=engine,
            run=self.run,
            nodes=self.nodes,
            processes_per_node=processes_per_node if self.nodes else 0,
            resources_created=self.created,
            resources_deleted=self.deleted,
            retained=self.retained,
            images=self.images,
            leaked=self.leaked,
            billed=self.billed,
            faults=self.faults,
            phases=phases,
            first_loss=losses.first if losses else None,
            last_loss=losses.last if losses else None,
            steps=losses.steps if losses else None,
            checkpoints=self.checkpoints,
            results_uri=self.results_uri,
            objects=self.objects,
            scaled=tuple(self.scaled),
            not_rehearsed=tuple(self.not_rehearsed),
        )
