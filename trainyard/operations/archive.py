"""Old checkpoints and results are marked for Deep Archive: by a tag, which the data bucket's lifecycle rule looks for.

Old is what a newer run has too, and of the newest run every checkpoint but its newest. What a run may still want stays
as it is: a run that goes on, the one that `job.resume` names, the newest checkpoint and the newest results of all.
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

# A launch is not held up for long: what is left then, the next one marks. Each object takes two calls.
SECONDS = 60.0
AT_ONCE = 16


def mark_old(cluster: Cluster, show: Display) -> None:
    """Mark what is old. What fails is said, and tried again by the next launch or stop: no launch fails for it."""
    if not cluster.is_up:
        return
    marking = _Marking(cluster, show)
    try:
        whole = marking.go()
    except Exception as error:  # also the record of a run that an older version left
        show.line("archive", f"old checkpoints could not be marked for Deep Archive, the next launch will try: {error}")
        return
    if marking.tagged or not whole:
        more = "" if whole else "; the next launch goes on with the rest"
        show.line("archive", f"old objects marked for Deep Archive: {marking.tagged}{more}")


@dataclass
class _Marking:
    cluster: Cluster
    show: Display
    tagged: int = 0

    def go(self) -> bool:
        """Whether all that is old is marked now."""
        until = time.monotonic() + SECONDS
        marked = {key.removeprefix(ARCHIVED) for key in self.cluster.data.keys(ARCHIVED)}
        return all(self._mark(prefix, until) for prefix in self._old(marked) if prefix.rstrip("/") not in marked)

    def _old(self, marked: set[str]) -> Iterator[str]:
        """Prefixes of what is old, the newest first."""
        current = self.cluster.current_run()
        spared = {self.cluster.manifest.job.resume, current and current.job.resume}
        newest_seen = {"checkpoints": False, "results": False}
        for run in sorted(self.cluster.data.folders("runs/"), reverse=True):
            layout = RunLayout(run)
            prefixes = {"checkpoints": layout.checkpoints, "results": layout.results}
            if all(prefix.rstrip("/") in marked for prefix in prefixes.values()):
                continue
            # One without an outcome goes on, in this stack or in another that shares the bucket.
            may = run not in spared and self.cluster.outcome(run) is not None
            for kind, prefix in prefixes.items():
                if newest_seen[kind]:
                    if may:
                        yield prefix
                    continue
                keys = list(self.cluster.data.keys(prefix))
                names = complete_checkpoints(keys, prefix)
                # A built-in trainer's first checkpoint may be incomplete; a user's job has marks of its own.
                newest_seen[kind] = bool(names) or (bool(keys) and (kind == "results" or not self._trains(run)))
                if may:
                    yield from (f"{prefix}{name}/" for name in names[:-1])

    def _trains(self, run: str) -> bool:
        record = self.cluster.record(run)
        return record is not None and record.job.train is not None

    def _mark(self, prefix: str, until: float) -> bool:
        """Tag all under a prefix, and say so there; False where the time was over before."""
        data = self.cluster.data
        rest = data.keys(prefix)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            while keys := list(islice(rest, AT_ONCE * 4)):
                if time.monotonic() > until:
                    return False
                self.tagged += sum(pool.map(lambda key: data.add_tag(key, tags.ARCHIVE, tags.OLD), keys))
                self.show.detail("archive", f"{self.tagged} objects marked, {prefix}")
        data.write(archived_key(prefix), b"")
        return True
