"""`archived.json` of the data bucket: which objects of ended runs are tagged for Deep Archive.

It saves a launch from listing the objects of all earlier runs. Without it, they are listed and tagged again.
"""

from pydantic import Field

from trainyard.base import StrictModel

CHECKPOINTS = "checkpoints/"
RESULTS = "results/"


class EndedRun(StrictModel):
    """An ended run. It no longer changes."""

    ended_at: float = Field(description="Unix time of its end, seconds.")
    older_checkpoints: tuple[str, ...] = Field(
        description="Prefixes, below that of the run, of the complete checkpoints of the built-in trainer except the "
        "newest."
    )
    has_checkpoint: bool = Field(description="Whether it has a checkpoint: of the built-in trainer, a complete one.")
    has_results: bool = Field(description="Whether it has results.")
    tagged: tuple[str, ...] = Field((), description="Prefixes, below that of the run, whose objects are all tagged.")

    def due(self, now: float, keep_seconds: float, *, keep_checkpoints: bool, keep_results: bool) -> list[str]:
        """Return the prefixes to tag: older checkpoints, and all `keep_seconds` after the end of the run.

        `keep_checkpoints`, `keep_results`: those of this run are the newest of the bucket.
        """
        prefixes = list(self.older_checkpoints)
        if now >= self.ended_at + keep_seconds:
            prefixes = prefixes if keep_checkpoints else [CHECKPOINTS]
            prefixes += [] if keep_results else [RESULTS]
        return [prefix for prefix in prefixes if not any(prefix.startswith(tagged) for tagged in self.tagged)]


class ArchiveState(StrictModel):
    """The ended runs of the bucket, by run id."""

    runs: dict[str, EndedRun] = Field(default_factory=dict, description="Run id -> its state.")
