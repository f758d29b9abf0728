"""The page's charts as geometry: places in percent of the plot, so a chart fits any width at one size of text."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rehearsal.timeline import NodeLine, Span
from trainyard.models.metrics import MetricLine

Tone = Literal["phase", "wait", "configure", "work", "bad"]
Side = Literal["after", "before", "inside"]
_TONES: dict[str, Tone] = {"configuring": "configure", "working": "work", "serving": "work"}


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A line of the grid. `at`: percent from the left, or from the top."""

    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A span on a time line."""

    left: float
    width: float
    tone: Tone
    title: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """Bars of one thing. The label stands at `at` percent, outside the bar or inside it."""

    label: str
    bars: tuple[Bar, ...]
    at: float = 0.0
    side: Side = "after"


@dataclass(frozen=True, kw_only=True)
class TimeLine:
    """Rows over one axis of seconds since the start."""

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A single value."""

    x: float
    y: float
    title: str


@dataclass(frozen=True, kw_only=True)
class LossChart:
    """Loss over steps. `line`: points of a polyline in a box of 100 x 100."""

    line: str
    dots: tuple[Dot, ...]
    held_out: tuple[Dot, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    summary: str


def phases_chart(phases: Sequence[Span]) -> TimeLine | None:
    """One bar a phase, its label beside it."""
    if not phases:
        return None
    zero, end = phases[0].start, max(span.end for span in phases)
    rows = []
    for span in phases:
        bar = _bar(span, zero, end, "phase")
        label = f"{_words(span.name)} {_seconds(span.end - span.start)}"
        side: Side = "after" if bar.left + bar.width <= 60 else "before" if bar.left >= 35 else "inside"
        at = bar.left + bar.width if side == "after" else bar.left
        rows.append(Row(label=label, bars=(bar,), at=round(at, 3), side=side))
    return _time_line(rows, zero, end)


def nodes_chart(nodes: Sequence[NodeLine], phases: Sequence[Span]) -> TimeLine | None:
    """One row a node's boot, on the axis of the phases."""
    if not nodes:
        return None
    spans = [*phases, *(span for node in nodes for span in node.spans)]
    zero, end = min(span.start for span in spans), max(span.end for span in spans)
    rows = []
    for node in nodes:
        boot = "" if node.boot == "0001" else f", boot {int(node.boot)}"
        last = node.spans[-1]
        label = f"{node.role} {node.instance}{boot}: {last.name}"
        rows.append(Row(label=label, bars=tuple(_bar(span, zero, end, _tone(span.name)) for span in node.spans)))
    return _time_line(rows, zero, end)


def loss_chart(metrics: Iterable[MetricLine]) -> LossChart | None:
    """None where no step has a finite loss."""
    metrics = list(metrics)
    seen = [(line.step, line.loss) for line in metrics if math.isfinite(line.loss)]
    held_out = [
        (line.step, line.validation_loss)
        for line in metrics
        if line.validation_loss is not None and math.isfinite(line.validation_loss)
    ]
    if not seen:
        return None
    values = [loss for _, loss in [*seen, *held_out]]
    up = nice_ticks(min(values), max(values))
    first, last = min(step for step, _ in seen), max(step for step, _ in seen)
    across = [step for step in nice_ticks(first, last, whole=True) if first <= step <= last]

    def x(step: float) -> float:
        return round((step - first) / (last - first) * 100, 3) if last > first else 50.0

    def y(loss: float) -> float:
        return round((up[-1] - loss) / (up[-1] - up[0]) * 100, 3)

    def dots(points: Iterable[tuple[int, float]], what: str) -> tuple[Dot, ...]:
        return tuple(Dot(x=x(step), y=y(loss), title=f"step {step}: {what} {loss:.4f}") for step, loss in points)

    summary = f"Training loss {seen[0][1]:.4f} at step {seen[0][0]}, {seen[-1][1]:.4f} at step {seen[-1][0]}."
    if held_out:
        summary += f" Held-out loss {held_out[-1][1]:.4f} at step {held_out[-1][0]}."
    if odd := len(metrics) - len(seen):
        summary += f" Steps not drawn, as their loss is no finite number: {odd}."
    return LossChart(
        line=" ".join(f"{x(step):g},{y(loss):g}" for step, loss in seen) if len(seen) > 1 else "",
        dots=dots(seen, "loss") if len(seen) == 1 else (),
        held_out=dots(held_out, "held-out loss"),
        across=tuple(Tick(at=x(step), text=f"{step:g}") for step in across),
        up=tuple(Tick(at=y(loss), text=f"{loss:g}") for loss in up),
        summary=summary,
    )


def nice_ticks(low: float, high: float, most: int = 8, *, whole: bool = False) -> list[float]:
    """About `most` round numbers, evenly apart, that enclose [low, high]; at least two."""
    width = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(width / most))
    step = next(size * factor for factor in (1, 2, 5, 10, 20) if width / (size * factor) <= most - 1)
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]


def _time_line(rows: Sequence[Row], zero: float, end: float) -> TimeLine:
    seconds = max(end - zero, 0.001)
    ticks = [Tick(at=round(at / seconds * 100, 3), text=f"{at:g} s") for at in nice_ticks(0, seconds) if at <= seconds]
    assert all(later.at > earlier.at for earlier, later in pairwise(ticks))
    return TimeLine(rows=tuple(rows), ticks=tuple(ticks), seconds=seconds)


def _bar(span: Span, zero: float, end: float, tone: Tone) -> Bar:
    whole, lasted = max(end - zero, 0.001), span.end - span.start
    return Bar(
        left=round((span.start - zero) / whole * 100, 3),
        width=round(lasted / whole * 100, 3),
        tone=tone,
        title=f"{_words(span.name)}: {_seconds(lasted)}, from {_seconds(span.start - zero)} on",
    )


def _tone(state: str) -> Tone:
    return "bad" if "failed" in state else _TONES.get(state.partition(",")[0], "wait")


def _words(name: str) -> str:
    return name.replace("_", " ")


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.1f} min"
