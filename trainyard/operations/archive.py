"""Tag old checkpoints and results, which the data bucket's lifecycle rule then moves to S3 Glacier Deep Archive.

Checkpoints and results are old when a newer run has them too; of the newest run, every checkpoint except its newest is
old. Not tagged are active runs, the run that `job.resume` names, and the newest checkpoint and results of the stack.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from trainyard.aws import tags
from trainyard.models.layout import ARCHIVED, RunLayout, archived_key, complete_checkpoints
from trainyard.operations.cluster import Cluster
from trainyard.operations.progress import Display

# Limits the delay of a launch; the next launch continues with the remaining objects. Each object needs two calls.
TIMEOUT_SECONDS = 60.0
PARALLEL_CALLS = 16


def tag_old_objects(cluster: Cluster, display: Display) -> None:
    """Tag old objects for archiving. A failure is reported and does not raise: the next launch or stop tries again."""
    if not cluster.is_deployed:
        return
    tagging = _Tagging(cluster, display)
    try:
        is_complete = tagging.run()
    except Exception as error:  # includes records that an earlier version wrote
        text = f"old checkpoints could not be tagged for Deep Archive; the next launch tries again: {error}"
        display.line("archive", text)
        return
    if tagging.tagged or not is_complete:
        more = "" if is_complete else "; the next launch continues"
        display.line("archive", f"old objects tagged for Deep Archive: {tagging.tagged}{more}")


@dataclass
class _Tagging:
    cluster: Cluster
    display: Display
    tagged: int = 0

    def run(self) -> bool:
        """Tag old objects; return whether all are tagged."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        done = {key.removeprefix(ARCHIVED) for key in self.cluster.data.keys(ARCHIVED)}
        return all(self._tag(prefix, deadline) for prefix in self._old_prefixes(done) if prefix.rstrip("/") not in done)

    def _old_prefixes(self, done: set[str]) -> Iterator[str]:
        """Yield the prefixes whose objects are old, newest run first; `done` are the prefixes with a marker object."""
        current = self.cluster.current_run()
        resumed_runs = {self.cluster.manifest.job.resume, current and current.job.resume}
        has_newest = {"checkpoints": False, "results": False}
        for run in sorted(self.cluster.data.folders("runs/"), reverse=True):
            layout = RunLayout(run)
            prefixes = {"checkpoints": layout.checkpoints, "results": layout.results}
            if all(prefix.rstrip("/") in done for prefix in prefixes.values()):
                continue
            # A run without an outcome is active, in this stack or in another stack that shares the bucket.
            may_archive = run not in resumed_runs and self.cluster.outcome(run) is not None
            for kind, prefix in prefixes.items():
                if has_newest[kind]:
                    if may_archive:
                        yield prefix
                    continue
                keys = list(self.cluster.data.keys(prefix))
                names = complete_checkpoints(keys, prefix)
                # The built-in trainer's first checkpoint may be incomplete; a user's job has its own checkpoint format.
                has_objects = bool(keys) and (kind == "results" or not self._uses_builtin_trainer(run))
                has_newest[kind] = bool(names) or has_objects
                if may_archive:
                    yield from (f"{prefix}{name}/" for name in names[:-1])

    def _uses_builtin_trainer(self, run: str) -> bool:
        record = self.cluster.record(run)
        return record is not None and record.job.train is not None

    def _tag(self, prefix: str, deadline: float) -> bool:
        """Tag all objects below a prefix and write its marker object; return False when the time limit was reached."""
        data = self.cluster.data
        remaining = data.keys(prefix)
        with ThreadPoolExecutor(PARALLEL_CALLS) as pool:
            while keys := list(islice(remaining, PARALLEL_CALLS * 4)):
                if time.monotonic() > deadline:
                    return False
                self.tagged += sum(pool.map(lambda key: data.add_tag(key, tags.ARCHIVE, tags.OLD), keys))
                self.display.detail("archive", f"{self.tagged} objects tagged, {prefix}")
        data.write(archived_key(prefix), b"")
        return True
