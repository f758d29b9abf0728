"""What a run tells while it runs, rank 0 alone: a line a step on stdout and in a file, and TensorBoard events."""

import math
from pathlib import Path
from types import TracebackType
from typing import Self

from contract.metrics import MetricLine
from trainer.storage import Storage


class Metrics:
    """Writes METRICS_DIR/metrics.jsonl and METRICS_DIR/tensorboard/, and copies the events under the results."""

    def __init__(self, folder: Path, results: Storage, steps: int) -> None:
        # 0.6 s to import: only rank 0 pays it.
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._events = folder / "tensorboard"
        self._lines = (folder / "metrics.jsonl").open("a", buffering=1)
        self._board = SummaryWriter(str(self._events))
        self._results, self._steps = results, steps

    def write(self, line: MetricLine) -> None:
        self._lines.write(line.model_dump_json() + "\n")
        for name in ("loss", "validation_loss", "learning_rate", "gradient_norm", "tokens_per_second"):
            value = getattr(line, name)
            if value is not None:
                self._board.add_scalar(name, value, line.step, line.time)
        held_out = "" if line.validation_loss is None else f" validation {line.validation_loss:.4f}"
        print(
            f"step {line.step}/{self._steps} loss {line.loss:.4f}{held_out} rate {line.learning_rate:.2e}"
            f" norm {line.gradient_norm:.3f} {line.tokens_per_second:,.0f} tokens/s",
            flush=True,
        )

    def publish(self) -> None:
        """Copy the events so far. Raises OSError where the storage is away."""
        self._board.flush()
        for file in sorted(self._events.iterdir()):
            self._results.upload(file, f"tensorboard/{file.name}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._board.close()
        self._lines.close()


def require_finite(step: int, loss: float, norm: float) -> None:
    """Raises FloatingPointError: a step on such a gradient would spoil every weight."""
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise FloatingPointError(
            f"step {step}: loss {loss}, gradient norm {norm}: training has diverged; this step changed no weight."
            " Lower the learning rate, or resume from an earlier checkpoint"
        )
