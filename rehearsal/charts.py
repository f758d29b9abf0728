"""Geometry of the page's charts, in percent of the plot: charts fit any width while the text keeps its size."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rehearsal.timeline import NodeTimeline, Span
from trainyard.models.metrics import MetricLine

BarClass = Literal["phase", "wait", "configure", "work", "failed"]
LabelPosition = Literal["after", "before", "inside"]
_BAR_CLASSES: dict[str, BarClass] = {"configuring": "configure", "working": "work", "serving": "work"}


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A grid line with its label. `position`: percent from the left, or from the top."""

    position: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A time span as a bar. `x` (from the left) and `width` are in percent; `css_class` sets its color."""

    x: float
    width: float
    css_class: BarClass
    title: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """Bars in one row with a label at `label_x` percent; `label_position` is relative to the bar."""

    label: str
    bars: tuple[Bar, ...]
    label_x: float = 0.0
    label_position: LabelPosition = "after"


@dataclass(frozen=True, kw_only=True)
class TimelineChart:
    """Rows of bars over one time axis of `seconds` length."""

    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Dot:
    """A single point, in percent from the left and from the top."""

    x: float
    y: float
    title: str


@dataclass(frozen=True, kw_only=True)
class LossChart:
    """Loss by step. `line`: points of an SVG polyline in a box of 100 x 100."""

    line: str
    dots: tuple[Dot, ...]
    validation: tuple[Dot, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    summary: str


def phases_chart(phases: Sequence[Span]) -> TimelineChart | None:
    """Return the chart of the phases, one row per phase; None without phases."""
    if not phases:
        return None
    origin, end = phases[0].start, max(span.end for span in phases)
    rows = []
    for span in phases:
        bar = _bar(span, origin, end, "phase")
        label = f"{_display_name(span.name)} {_format_seconds(span.end - span.start)}"
        position: LabelPosition = "after" if bar.x + bar.width <= 60 else "before" if bar.x >= 35 else "inside"
        label_x = bar.x + bar.width if position == "after" else bar.x
        rows.append(Row(label=label, bars=(bar,), label_x=round(label_x, 3), label_position=position))
    return _timeline_chart(rows, origin, end)


def nodes_chart(nodes: Sequence[NodeTimeline], phases: Sequence[Span]) -> TimelineChart | None:
    """Return the chart of the nodes, one row per boot, on the time axis of the phases; None without nodes."""
    if not nodes:
        return None
    spans = [*phases, *(span for node in nodes for span in node.spans)]
    origin, end = min(span.start for span in spans), max(span.end for span in spans)
    rows = []
    for node in nodes:
        boot = "" if node.boot == "0001" else f", boot {int(node.boot)}"
        last = node.spans[-1]
        label = f"{node.role} {node.instance}{boot}: {last.name}"
        bars = tuple(_bar(span, origin, end, _bar_class(span.name)) for span in node.spans)
        rows.append(Row(label=label, bars=bars))
    return _timeline_chart(rows, origin, end)


def loss_chart(metrics: Iterable[MetricLine]) -> LossChart | None:
    """Return the chart of training and validation loss; None when no step has a finite loss."""
    metrics = list(metrics)
    training = [(line.step, line.loss) for line in metrics if math.isfinite(line.loss)]
    validation = [
        (line.step, line.validation_loss)
        for line in metrics
        if line.validation_loss is not None and math.isfinite(line.validation_loss)
    ]
    if not training:
        return None
    values = [loss for _, loss in [*training, *validation]]
    y_ticks = nice_ticks(min(values), max(values))
    first, last = min(step for step, _ in training), max(step for step, _ in training)
    x_ticks = [step for step in nice_ticks(first, last, whole=True) if first <= step <= last]

    def x(step: float) -> float:
        return round((step - first) / (last - first) * 100, 3) if last > first else 50.0

    def y(loss: float) -> float:
        return round((y_ticks[-1] - loss) / (y_ticks[-1] - y_ticks[0]) * 100, 3)

    def dots(points: Iterable[tuple[int, float]], name: str) -> tuple[Dot, ...]:
        return tuple(Dot(x=x(step), y=y(loss), title=f"step {step}: {name} {loss:.4f}") for step, loss in points)

    summary = (
        f"Training loss {training[0][1]:.4f} at step {training[0][0]}, {training[-1][1]:.4f} at step {training[-1][0]}."
    )
    if validation:
        summary += f" Validation loss {validation[-1][1]:.4f} at step {validation[-1][0]}."
    if omitted := len(metrics) - len(training):
        summary += f" Steps omitted because their loss is not finite: {omitted}."
    return LossChart(
        line=" ".join(f"{x(step):g},{y(loss):g}" for step, loss in training) if len(training) > 1 else "",
        dots=dots(training, "loss") if len(training) == 1 else (),
        validation=dots(validation, "validation loss"),
        x_ticks=tuple(Tick(position=x(step), text=f"{step:g}") for step in x_ticks),
        y_ticks=tuple(Tick(position=y(loss), text=f"{loss:g}") for loss in y_ticks),
        summary=summary,
    )


def nice_ticks(low: float, high: float, target_count: int = 8, *, whole: bool = False) -> list[float]:
    """Return about `target_count` evenly spaced round numbers that enclose [low, high]; at least two.

    `whole`: return whole numbers only.
    """
    width = (high - low) or abs(high) or 1.0
    size = 10.0 ** math.floor(math.log10(width / target_count))
    step = next(size * factor for factor in (1, 2, 5, 10, 20) if width / (size * factor) <= target_count - 1)
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(number * step, 10) for number in range(first, max(last, first + 1) + 1)]


def _timeline_chart(rows: Sequence[Row], origin: float, end: float) -> TimelineChart:
    seconds = max(end - origin, 0.001)
    ticks = [
        Tick(position=round(second / seconds * 100, 3), text=f"{second:g} s")
        for second in nice_ticks(0, seconds)
        if second <= seconds
    ]
    assert all(later.position > earlier.position for earlier, later in pairwise(ticks))
    return TimelineChart(rows=tuple(rows), ticks=tuple(ticks), seconds=seconds)


def _bar(span: Span, origin: float, end: float, css_class: BarClass) -> Bar:
    total, seconds = max(end - origin, 0.001), span.end - span.start
    return Bar(
        x=round((span.start - origin) / total * 100, 3),
        width=round(seconds / total * 100, 3),
        css_class=css_class,
        title=f"{_display_name(span.name)}: {_format_seconds(seconds)} from {_format_seconds(span.start - origin)}",
    )


def _bar_class(state: str) -> BarClass:
    return "failed" if "failed" in state else _BAR_CLASSES.get(state.partition(",")[0], "wait")


def _display_name(name: str) -> str:
    return name.replace("_", " ")


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 600 else f"{seconds / 60:.1f} min"
