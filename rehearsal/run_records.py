"""What a run leaves in S3 and in the account: metric lines of all attempts, events, decisions, instances."""

from collections.abc import Iterable

from rehearsal.aws.control_models import InstanceRecord
from trainyard.aws import tags
from trainyard.aws.s3 import Bucket
from trainyard.base import StrictModel
from trainyard.models.decision import AttemptDecision
from trainyard.models.events import NodeEvent
from trainyard.models.layout import RunLayout
from trainyard.models.metrics import MetricLine
from trainyard.models.streams import Cursor, new_metrics, node_events


class RunRecords(StrictModel):
    """The records of one run. `lines`: of all attempts, by attempt and step. `decisions`: in the order of attempts."""

    lines: tuple[MetricLine, ...] = ()
    events: tuple[NodeEvent, ...] = ()
    decisions: tuple[AttemptDecision, ...] = ()
    instances: tuple[InstanceRecord, ...] = ()

    @property
    def final_lines(self) -> list[MetricLine]:
        """The line of the last attempt for each step, in order."""
        lines = {line.step: line for line in self.lines}
        return [lines[step] for step in sorted(lines)]


def read_run_records(data: Bucket, run: str, instances: Iterable[InstanceRecord]) -> RunRecords:
    """Read the records of a run. `instances`: those that the stack has launched."""
    layout = RunLayout(run)
    lines = new_metrics(Cursor(data, layout.metrics))
    decisions = [AttemptDecision.model_validate_json(data.read(key)) for key in sorted(data.keys(layout.decisions))]
    return RunRecords(
        lines=tuple(sorted(lines, key=lambda line: (line.attempt, line.step))),
        events=tuple(sorted(node_events(Cursor(data, layout.events)), key=lambda event: event.time)),
        decisions=tuple(decisions),
        instances=tuple(instances),
    )


def workers(instances: Iterable[InstanceRecord]) -> list[InstanceRecord]:
    """Return the workers among the instances of a stack."""
    return [each for each in instances if each.autoscaling_group and each.tags.get(tags.ROLE) != "head"]
