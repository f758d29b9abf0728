"""Look up the run that was launched last: its record, its outcome and its last step."""

import json
from dataclasses import dataclass

import pulumi_aws as aws

from infra.lookups.errors import is_missing
from trainyard.models.layout import CURRENT_RUN, RunLayout
from trainyard.models.run import Outcome, RunRecord, launch_trigger


@dataclass(frozen=True, kw_only=True)
class CurrentRun:
    """The run that was launched last. `outcome`: None while it may be active. `step`: of its newest metrics, if any."""

    record: RunRecord
    outcome: Outcome | None
    step: int | None

    def is_active(self, now: float) -> bool:
        """Return whether nodes may run at `now`, Unix time: it has no outcome, and its deadline is not over."""
        return self.outcome is None and now < self.record.deadline

    @property
    def trigger(self) -> str:
        """Trigger of the resource that launches the job."""
        return launch_trigger(self.record, self.outcome)

    def __str__(self) -> str:
        return f"run {self.record.run}" if self.step is None else f"run {self.record.run} at step {self.step}"


def look_up_current_run(staging_bucket: str | None, data_bucket: str | None) -> CurrentRun | None:
    """Look up the run that was launched last; None if the stack is not deployed or nothing was launched."""
    content = read_object(staging_bucket, CURRENT_RUN)
    if content is None:
        return None
    record = RunRecord.model_validate_json(content)
    layout = RunLayout(record.run)
    outcome, metrics = read_object(data_bucket, layout.outcome), read_object(data_bucket, layout.latest_metrics)
    step = json.loads(metrics).get("step") if metrics else None
    return CurrentRun(record=record, outcome=Outcome.model_validate_json(outcome) if outcome else None, step=step)


def read_object(bucket: str | None, key: str) -> str | None:
    """Return the content of an object of JSON or text; None if it does not exist."""
    if bucket is None:
        return None
    try:
        return aws.s3.get_object(bucket=bucket, key=key).body
    except Exception as error:
        if is_missing(error):
            return None
        raise
