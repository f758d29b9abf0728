"""The progress file of a rank: its last step and the durations by which a slow rank is found.

Each rank of the built-in trainer writes one in METRICS_DIR; a job of the user may (docs/jobs.md).
"""

from pathlib import Path

from pydantic import Field

from trainyard.base import StrictModel


class RankProgress(StrictModel):
    """Content of a progress file, a JSON object that is replaced atomically, at most once per second."""

    rank: int = Field(ge=0, description="Global rank.")
    step: int = Field(ge=0, description="Number of the last complete step.")
    time: float = Field(description="Unix time at the end of the step, seconds.")
    step_seconds: float = Field(ge=0, description="Duration of the step, seconds.")
    busy_seconds: float | None = Field(
        None, ge=0, description="Of these, without the time that the rank waited for other ranks; null: not measured."
    )
    is_saving: bool = Field(
        False, description="Whether the rank is writing a checkpoint that it can complete without other ranks."
    )


def progress_file(metrics_dir: Path, rank: int) -> Path:
    """Return the path of a rank's progress file."""
    return metrics_dir / f"progress-{rank}.json"
