"""The simulated job: its progress, its checkpoints, and what an interruption costs."""

from benchmarks.simulation.ledger import Ledger
from benchmarks.simulation.storage import MemoryBucket
from benchmarks.simulation.timeline import Timeline
from benchmarks.simulation.times import Times
from trainer.checkpoints.cadence import Cadence, SaveTimes
from trainyard.config.training.config import CheckpointConfig
from trainyard.models.layout import COMMIT_MARK, RunLayout
from trainyard.models.rank_progress import RankProgress

_RETAINED_CHECKPOINTS = 2


class SimulatedJob:
    """Training that advances by one second each second, and saves checkpoints in the trainer's cadence."""

    def __init__(
        self, timeline: Timeline, times: Times, data: MemoryBucket, layout: RunLayout, ledger: Ledger, nodes: int
    ) -> None:
        self.is_training = False
        self.saves = 0
        self._timeline, self._times, self._data, self._layout, self._ledger = timeline, times, data, layout, ledger
        self._nodes = nodes
        self._position = self._saved = 0.0  # seconds of training
        self._started_at = 0.0  # time at which the position was valid
        self._generation = 0  # of the running attempt: events of earlier attempts are ignored
        self._cadence: Cadence | None = None
        self._checkpoints: list[str] = []
        self._progress: tuple[RankProgress, ...] = ()

    @property
    def position(self) -> float:
        """Seconds of training so far that an interruption now would not repeat, or would repeat."""
        return self._position + (self._timeline.now - self._started_at if self.is_training else 0.0)

    def progress(self) -> tuple[RankProgress, ...]:
        """Return the progress that ranks report while they train."""
        step = int(self.position / self._times.step.seconds)
        if not self._progress or self._progress[0].step != step:
            seconds = self._times.step.seconds
            self._progress = (RankProgress(rank=0, step=step, time=self._timeline.time(), step_seconds=seconds),)
        return self._progress

    def start(self) -> None:
        """Continue from the newest checkpoint."""
        self.is_training, self._started_at = True, self._timeline.now
        self._generation += 1
        self._cadence = Cadence(CheckpointConfig(), self._nodes, self._timeline.monotonic)
        self._cadence.is_due(0)
        self._schedule_save()

    def stop(self) -> None:
        """Training has stopped: steps since the newest complete checkpoint are repeated."""
        if not self.is_training:
            return
        self._ledger.move("training", "repeated steps", self.position - self._saved)
        self.is_training, self._position, self._progress = False, self._saved, ()
        self._generation += 1

    def save(self) -> None:
        """Start a save now. It is complete after some time if training continues until then."""
        assert self._cadence is not None
        self._cadence.record_start()
        position, generation, stall = self.position, self._generation, self._times.save_stall.seconds
        self._ledger.move("training", "checkpoints", stall)
        self._position -= stall
        self._timeline.schedule(self._times.save.seconds, lambda: self._complete(position, generation))

    def _schedule_save(self) -> None:
        assert self._cadence is not None
        generation = self._generation

        def save_if_due() -> None:
            if generation == self._generation:
                self.save()
                self._schedule_save()

        self._timeline.schedule(self._cadence.interval_seconds, save_if_due)

    def _complete(self, position: float, generation: int) -> None:
        if generation != self._generation:
            return
        assert self._cadence is not None
        self._cadence.record_times(SaveTimes(self._times.save_stall.seconds, self._times.save.seconds))
        self._saved = position - self._times.save_stall.seconds
        self.saves += 1
        folder = f"{self._layout.checkpoints}step-{self.saves:08d}"
        self._checkpoints.append(f"{folder}/{COMMIT_MARK}")
        self._data.write(self._checkpoints[-1], b"x")
        if len(self._checkpoints) > _RETAINED_CHECKPOINTS:
            self._data.delete(self._checkpoints.pop(0))
