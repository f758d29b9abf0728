"""Progress of a run from its metric lines."""

from tests.metrics import metric
from trainyard.models.step_progress import format_progress, remaining_seconds


def test_progress_has_step_loss_and_remaining_time() -> None:
    lines = [metric(step, loss=4.0, time=100.0 + 2.0 * step) for step in range(1, 41)]
    assert format_progress(lines, 60) == "step 40 of 60, loss 4.0000, 32 tokens/s, 40 s left"


def test_no_time_remains_after_the_end() -> None:
    assert format_progress([metric(40)], 60, has_ended=True) == "step 40 of 60, loss 5.0000, 32 tokens/s"
    assert format_progress([metric(60)], 60) == "step 60 of 60, loss 5.0000, 32 tokens/s"


def test_earlier_attempts_do_not_count_for_the_remaining_time() -> None:
    lines = [metric(1, time=1.0), metric(2, time=900.0, attempt=2), metric(3, time=901.0, attempt=2)]
    assert remaining_seconds(lines, 10) == 7.0


def test_run_without_metric_lines_has_no_progress() -> None:
    assert (format_progress([], 60), remaining_seconds([], 60)) == ("", None)
