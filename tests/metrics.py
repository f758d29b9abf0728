"""Complete metric lines for tests."""

from typing import Any

from trainyard.models.metrics import MetricLine


def metric(step: int, loss: float = 5.0, **changes: Any) -> MetricLine:
    """Return a metric line of a step of one second over 8 samples of 4 tokens; `changes` replace fields."""
    fields: dict[str, Any] = {
        "time": float(step),
        "attempt": 1,
        "step": step,
        "loss": loss,
        "learning_rate": 0.1,
        "gradient_norm": 1.0,
        "consumed": 8 * step,
        "samples_per_second": 8.0,
        "tokens_per_second": 32.0,
        "step_seconds": 1.0,
        "data_seconds": 0.01,
        "forward_seconds": 0.3,
        "backward_seconds": 0.6,
        "optimizer_seconds": 0.05,
        "checkpoint_seconds": 0.0,
        "mfu": None,
        "memory_gib": 0.5,
    }
    return MetricLine.model_validate({**fields, **changes})
