"""Tag objects of ended runs, which the data bucket's lifecycle rule then moves to S3 Glacier Deep Archive.

The rule moves an object with the tag when a number of days have passed since it was written
(storage.archive_after_days). It cannot select by the end of a run. So the tag is put on

- older checkpoints of the built-in trainer, when their run has ended;
- the newest checkpoint and the results of a run, and all checkpoints of a custom job, that number of days after the end
  of the run. Whether other runs exist does not matter.

Not tagged are active runs, runs that `job.resume` names, and the newest checkpoint and results of the bucket.
"""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice

from pydantic import ValidationError

from trainyard.aws import tags
from trainyard.aws.s3 import StoredObject
from trainyard.models.archive_state import ArchiveState, EndedRun
from trainyard.models.layout import ARCHIVED, RunLayout, complete_checkpoints
from trainyard.models.run import Outcome, RunRecord
from trainyard.operations.archive_message import describe_tagged
from trainyard.operations.cluster import Cluster
from trainyard.operations.progress import Display
from trainyard.quantity import quantity

# Limits the delay of a launch; the next launch continues with the remaining objects. Each object needs two calls.
TIMEOUT_SECONDS = 60.0
PARALLEL_CALLS = 16
DAY_SECONDS = 86400.0
# Nodes that drain save a checkpoint after the end of a run: until then its objects are listed again.
SETTLE_SECONDS = 3600.0


def tag_old_objects(cluster: Cluster, display: Display) -> None:
    """Tag old objects for archiving. A failure is reported and does not raise: the next launch or stop tries again."""
    if not cluster.is_deployed:
        return
    try:
        days = cluster.data.days_until_archived(tags.ARCHIVE, tags.OLD)
        if days is not None:
            _Tagging(cluster, display, days).run()
    except Exception as error:  # includes records that an earlier version wrote
        text = f"old checkpoints could not be tagged for Deep Archive; the next launch tries again: {error}"
        display.line("archive", text)


@dataclass
class _Tagging:
    """One pass. `days`: those of the lifecycle rule. `runs`: the ended runs, newest first."""

    cluster: Cluster
    display: Display
    days: int
    runs: dict[str, EndedRun] = field(default_factory=dict)
    resumed_runs: set[str | None] = field(default_factory=set)
    tagged: dict[str, list[str]] = field(default_factory=dict)  # run -> prefixes
    objects: int = 0
    first_write: float = math.inf

    def __post_init__(self) -> None:
        self.deadline = time.monotonic() + TIMEOUT_SECONDS

    def run(self) -> None:
        """Tag what is due, save the state, and report what was tagged."""
        state = self._read_state()
        is_complete = self._find_ended_runs(state) and self._keep_resumed_runs() and self._tag_due_objects()
        self._save_state(state)
        more = "" if is_complete else ". The next launch continues"
        if self.objects:
            text = describe_tagged(self.tagged, self.objects, self.days, self.first_write)
            self.display.line("archive", f"{text}{more}")
        elif not is_complete:
            self.display.line("archive", f"no object was tagged for Deep Archive within {TIMEOUT_SECONDS:g} s{more}")

    def _read_state(self) -> ArchiveState:
        content = self.cluster.data.find(ARCHIVED)
        try:
            return ArchiveState() if content is None else ArchiveState.model_validate_json(content)
        except ValidationError:  # of another version
            return ArchiveState()

    def _save_state(self, earlier: ArchiveState) -> None:
        settled = time.time() - SETTLE_SECONDS
        state = ArchiveState(runs={run: ended for run, ended in self.runs.items() if ended.ended_at < settled})
        if state != earlier:
            self.cluster.data.write(ARCHIVED, state.model_dump_json().encode())

    def _find_ended_runs(self, state: ArchiveState) -> bool:
        """Set `runs` and `resumed_runs`; return whether all runs were read before the deadline."""
        self.resumed_runs = {self.cluster.manifest.job.resume}
        for run in sorted(self.cluster.data.folders("runs/"), reverse=True):
            if run in state.runs:
                self.runs[run] = state.runs[run]
                continue
            if time.monotonic() > self.deadline:
                return False
            record, outcome = self.cluster.record(run), self.cluster.outcome(run)
            if outcome is not None:
                self.runs[run] = self._read_ended_run(run, record, outcome)
            elif record is not None:  # active, in this stack or in another stack that shares the bucket
                self.resumed_runs.add(record.job.resume)
        return True

    def _read_ended_run(self, run: str, record: RunRecord | None, outcome: Outcome) -> EndedRun:
        data, layout = self.cluster.data, RunLayout(run)
        keys = list(data.keys(layout.checkpoints))
        names = complete_checkpoints(keys, layout.checkpoints)
        builtin_trainer = record is not None and record.job.train is not None
        older = names[:-1] if builtin_trainer else []  # a custom job may save one checkpoint as several folders
        return EndedRun(
            ended_at=outcome.ended_at,
            older_checkpoints=tuple(f"{layout.checkpoints}{name}/".removeprefix(layout.prefix) for name in older),
            has_checkpoint=bool(names if builtin_trainer else keys),
            has_results=next(data.keys(layout.results), None) is not None,
        )

    def _keep_resumed_runs(self) -> bool:
        """Change the tags of resumed runs, so that S3 does not move their objects; return False at the deadline."""
        for run, ended in self.runs.items():
            if run in self.resumed_runs and ended.tagged:
                for prefix in ended.tagged:
                    if not self._set_tag(run, prefix, tags.KEPT):
                        return False
                self.runs[run] = ended.model_copy(update={"tagged": ()})
                self.display.line("archive", f"{run} is not moved to Deep Archive, because job.resume names it")
        return True

    def _tag_due_objects(self) -> bool:
        """Tag what is due, newest run first; return False at the deadline."""
        newest_checkpoint = next((run for run, ended in self.runs.items() if ended.has_checkpoint), None)
        newest_results = next((run for run, ended in self.runs.items() if ended.has_results), None)
        for run, ended in self.runs.items():
            keeps = {"keep_checkpoints": run == newest_checkpoint, "keep_results": run == newest_results}
            due = ended.due(time.time(), self.days * DAY_SECONDS, **keeps) if run not in self.resumed_runs else []
            for prefix in due:
                if not self._set_tag(run, prefix, tags.OLD):
                    return False
                self.runs[run] = self.runs[run].model_copy(update={"tagged": (*self.runs[run].tagged, prefix)})
        return True

    def _set_tag(self, run: str, prefix: str, value: str) -> bool:
        """Tag all objects below a prefix of the run that are not archived; return False at the deadline."""
        data = self.cluster.data
        objects = (item for item in data.objects(RunLayout(run).prefix + prefix) if not item.archived)
        with ThreadPoolExecutor(PARALLEL_CALLS) as pool:
            while batch := list(islice(objects, PARALLEL_CALLS * 4)):
                if time.monotonic() > self.deadline:
                    return False
                changes = pool.map(lambda item: data.set_tag(item.key, tags.ARCHIVE, value), batch)
                changed = [item for item, is_changed in zip(batch, changes, strict=True) if is_changed]
                if changed and value == tags.OLD:
                    self._count(run, prefix, changed)
        return True

    def _count(self, run: str, prefix: str, tagged: list[StoredObject]) -> None:
        self.objects += len(tagged)
        self.first_write = min(self.first_write, *(stored.modified for stored in tagged))
        prefixes = self.tagged.setdefault(run, [])
        if prefix not in prefixes:
            prefixes.append(prefix)
        self.display.detail("archive", f"{quantity(self.objects, 'object')} tagged, {run}/{prefix}")
