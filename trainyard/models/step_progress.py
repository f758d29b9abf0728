"""Progress of a run of the built-in trainer: step, loss, throughput and remaining time."""

from collections.abc import Sequence

from trainyard.models.metrics import MetricLine
from trainyard.times import format_duration

AVERAGED_STEPS = 50  # for the remaining time: includes evaluations and checkpoints


def remaining_seconds(lines: Sequence[MetricLine], steps: int) -> float | None:
    """Return the seconds until the last step, at the speed of the last steps. None without a metric line.

    `lines`: metric lines in order of their steps. `steps`: optimizer steps of the run.
    """
    if not lines:
        return None
    last = lines[-1]
    first = next(line for line in lines[-AVERAGED_STEPS:] if line.attempt == last.attempt)
    is_measured = last.step > first.step and last.time > first.time
    seconds = (last.time - first.time) / (last.step - first.step) if is_measured else last.step_seconds
    return max(0, steps - last.step) * seconds


def format_progress(lines: Sequence[MetricLine], steps: int, *, has_ended: bool = False) -> str:
    """Return such as `step 40 of 60, loss 2.5130, 1,024 tokens/s, 24 s left`; empty without a metric line.

    `has_ended`: the run has ended, so that no time is left.
    """
    remaining = remaining_seconds(lines, steps)
    if remaining is None:
        return ""
    last = lines[-1]
    validation = "" if last.validation_loss is None else f", validation loss {last.validation_loss:.4f}"
    loss = f"step {last.step} of {steps}, loss {last.loss:.4f}{validation}, {last.throughput}"
    return f"{loss}, {format_duration(remaining)} left" if last.step < steps and not has_ended else loss
