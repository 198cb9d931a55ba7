"""Draw the figures of a report with matplotlib, as SVG images that are embedded in the page.

Every `draw_…` function takes numbers, and returns an image as a data URI. The same numbers give the same bytes.
matplotlib is imported when the first figure is drawn, because it takes long to import.
"""

from __future__ import annotations

import base64
import io
import logging
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from albert_cli.report.render import strip_unprintable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

# The colors of runs and models. Eight are enough for the variants of every experiment.
PALETTE: Final = ("#1f5f99", "#c0561c", "#3d7d4b", "#8a4b94", "#8c6d1f", "#b33a52", "#23a3a8", "#d98cb3")
INK: Final = "#22211e"  # text
MUTED: Final = "#6c675e"  # axes and baselines
RULE: Final = "#d8d3c7"  # thin lines
_MAX_CURVE_POINTS = 300  # about the number of pixels of an axis
_MAX_LABEL_LENGTH = 24  # characters
_INCHES_PER_CHARACTER = 0.09  # of a label
_STYLE: Any = {  # typed as Any, because matplotlib's type for settings is a literal of all its keys
    "svg.fonttype": "none",
    "svg.hashsalt": "albert",
    "text.parse_math": False,
    "text.color": INK,
    "font.size": 11,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
}
_BASELINE_STYLES: Final = (":", (0, (6, 3)))  # dotted, and dashed: dashes of 6 line widths with gaps of 3
LineStyle = Literal["thin", "faint", "marked"]
_LINE_STYLES: Mapping[LineStyle, dict[str, Any]] = {
    "thin": {"linewidth": 1.2, "alpha": 0.85},
    "faint": {"linewidth": 1.2, "alpha": 0.45},
    "marked": {"marker": "o", "markersize": 3.6},
}


@dataclass(frozen=True)
class LegendEntry:
    """A name in the legend below a figure, with the color and the shape that mark it."""

    label: str
    color: str
    shape: Literal["dot", "line"] = "dot"


@dataclass(frozen=True)
class Figure:
    """A figure: a function that draws its image, with title, caption and legend."""

    title: str
    description: str  # for people who cannot see the image
    draw: Callable[[], str]  # returns the image as a data URI; the Markdown text of a page has no images
    caption: str = ""
    legend: Sequence[LegendEntry] = ()


@dataclass(frozen=True)
class LineSeries:
    """The points (x, y) of a curve, and how it is drawn."""

    points: Sequence[tuple[float, float]]
    color: str
    style: LineStyle = "thin"


@dataclass(frozen=True)
class DotRow:
    """A row of a dot plot: the scores of a model's seeds with their median, or a baseline's single score."""

    label: str
    scores: Sequence[float]  # 0 to 1
    median: float | None = None  # None for a baseline
    color: str = MUTED
    is_collapsed: Sequence[bool] = ()  # for each score, True if its run collapsed; empty if none did


@dataclass(frozen=True)
class TrendSeries:
    """The scores of a model, or of a baseline, by number of labeled examples."""

    label: str
    scores: Mapping[float, Sequence[float]]  # 0 to 1: the scores of the seeds, by number of labeled examples
    color: str = MUTED
    is_baseline: bool = False


@dataclass(frozen=True)
class LabeledPoint:
    """A model in a scatter plot: its parameters `x`, its score `y` in percent, and its label."""

    x: float
    y: float
    label: str
    color: str


def series_color(number: int) -> str:
    """Return the color of the series with this number, from 0; colors repeat after the last one."""
    return PALETTE[number % len(PALETTE)]


def draw_curves(
    series: Sequence[LineSeries],
    levels: Mapping[float, str] | None = None,
    *,
    percent: bool = False,
    from_zero: bool = False,
    x_label: str = "step",
) -> str:
    """Draw curves over steps, or over another quantity that `x_label` names.

    levels: labels of horizontal lines by their height; percent: show values of 0 to 1 as 0 to 100; from_zero: begin the
    y axis at 0.
    """
    scale = 100.0 if percent else 1.0

    def draw(axes: Axes) -> None:
        for line in series:
            xs, ys = _average_neighbors(line.points)
            axes.plot(xs, scale * ys, color=line.color, **_LINE_STYLES[line.style])
        axes.margins(x=0.02, y=0.12)
        for level, label in (levels or {}).items():
            axes.axhline(scale * level, color=MUTED, linestyle="--", linewidth=1.1)
            axes.annotate(
                strip_unprintable(label), (0.99, scale * level), (0, 4), xycoords=("axes fraction", "data"),
                textcoords="offset points", ha="right", color=MUTED, size=10,
            )  # fmt: skip
        if from_zero:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(x_label)
        _use_plain_ticks(axes.xaxis, integer=True)
        _use_plain_ticks(axes.yaxis)

    return _draw_image(draw)


def draw_bars(labels: Sequence[str], fractions: Sequence[float], expected: Sequence[float] = ()) -> str:
    """Draw fractions as bars in percent, with the values above the bars.

    expected: fractions that a line across each bar marks; empty for no lines.
    """

    def draw(axes: Axes) -> None:
        bars = axes.bar(range(len(labels)), [100 * fraction for fraction in fractions], width=0.62, color=PALETTE[0])
        axes.bar_label(bars, fmt="%.1f", padding=3, size=10)
        for index, fraction in enumerate(expected):
            axes.plot([index - 0.4, index + 0.4], [100 * fraction] * 2, color=PALETTE[1], linewidth=2.4)
        axes.set_xticks(range(len(labels)), labels, size=9)
        axes.margins(y=0.14)

    return _draw_image(draw)


def draw_dots(rows: Sequence[DotRow]) -> str:
    """Draw scores times 100: for each model a row with a dot for each seed and a bar at the median.

    The dot of a collapsed run is a ring. A baseline is a diamond.
    """
    labels = _shorten_labels([row.label for row in rows])

    def draw(axes: Axes) -> None:
        for height, row in enumerate(reversed(rows)):
            scores = [100 * score for score in row.scores]
            if row.median is None:
                axes.plot(scores, [height] * len(scores), "D", markersize=5, color=row.color)
                continue
            is_collapsed = row.is_collapsed or [False] * len(scores)
            for score, is_ring in zip(scores, is_collapsed, strict=True):
                face = "none" if is_ring else row.color
                axes.plot([score], [height], "o", markersize=6, color=row.color, markerfacecolor=face, alpha=0.75)
            axes.plot([100 * row.median] * 2, [height - 0.34, height + 0.34], color=row.color, linewidth=2.4)
        axes.set_yticks(range(len(rows)), labels[::-1])
        axes.tick_params(axis="y", labelcolor=INK)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        all_scores = [100 * score for row in rows for score in row.scores]
        center = (min(all_scores) + max(all_scores)) / 2
        # The axis covers at least one percentage point, so that tiny differences look tiny.
        score_range = max(max(all_scores) - min(all_scores), 1.0)
        half_width = (0.5 + 0.06) * score_range  # with a margin of 6 % on each side
        axes.set_xlim(center - half_width, center + half_width)
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        _use_plain_ticks(axes.xaxis)

    return _draw_image(draw, (5.4, 0.32 * len(rows) + 0.5), labels)


def draw_points(points: Sequence[LabeledPoint]) -> str:
    """Draw scores over parameters, in millions on a logarithmic axis."""
    sorted_points = sorted(points, key=lambda point: point.x)
    labels = _shorten_labels([point.label for point in sorted_points])

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        for index, (point, label) in enumerate(zip(sorted_points, labels, strict=True)):
            axes.plot([point.x], [point.y], "o", markersize=7, color=point.color)
            # Labels are above and below their points in turn, so that labels of neighbors do not overlap.
            offset = -15 if index % 2 else 7
            axes.annotate(label, (point.x, point.y), (0, offset), textcoords="offset points", ha="center", size=10)
        axes.set_xscale("log")
        axes.margins(x=0.2, y=0.2)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:,.10g} M"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel("parameters")
        _use_plain_ticks(axes.yaxis)

    return _draw_image(draw, labels=labels)


def draw_trends(trends: Sequence[TrendSeries]) -> str:
    """Draw scores times 100 over the number of labeled examples, on a logarithmic axis.

    A model has a solid line through the medians of its seeds, and a dot for each seed. Baselines have dotted and dashed
    lines in turn, and no dots. The legend lists each series with its median at its largest number of examples.
    """
    labels = _shorten_labels([trend.label for trend in trends])

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import NullLocator

        baseline_styles = cycle(_BASELINE_STYLES)
        lines = []
        legend_labels = []
        for trend, label in zip(trends, labels, strict=True):
            counts = sorted(trend.scores)
            medians = [100 * statistics.median(trend.scores[count]) for count in counts]
            legend_labels.append(f"{label}  {medians[-1]:.1f}")
            style = next(baseline_styles) if trend.is_baseline else "-"
            lines.extend(axes.plot(counts, medians, linestyle=style, color=trend.color))
            if not trend.is_baseline:
                dot_counts = [count for count in counts for _ in trend.scores[count]]
                dot_scores = [100 * score for count in counts for score in trend.scores[count]]
                axes.plot(dot_counts, dot_scores, "o", markersize=6, color=trend.color, alpha=0.75)
        axes.set_xscale("log")
        all_counts = sorted({count for trend in trends for count in trend.scores})
        axes.set_xticks(all_counts, [f"{count:,.0f}" for count in all_counts])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("labeled examples")
        # matplotlib leaves out a label that begins with "_", so the legend gets its labels after its lines.
        legend = axes.legend(lines, [""] * len(lines), loc="center left", bbox_to_anchor=(1, 0.5), handlelength=2.6)
        for text, label in zip(legend.get_texts(), legend_labels, strict=True):
            text.set_text(label)
        _use_plain_ticks(axes.yaxis)

    return _draw_image(draw, (9.6, 4.3), labels)


def _draw_image(
    draw: Callable[[Axes], None], size: tuple[float, float] = (5.4, 3.1), labels: Sequence[str] = ()
) -> str:
    """Call `draw` with new axes and return the SVG as a data URI.

    size: width and height in inches, without the extra width that long labels need.
    """
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it warns if it cannot save its font cache
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Canvas

    with rc_context(_STYLE), warnings.catch_warnings():
        # The page's font shows the letters that matplotlib's font lacks, because the SVG has text instead of glyphs.
        warnings.filterwarnings("ignore", "Glyph .* missing|Matplotlib currently does not support", UserWarning)
        width, height = size
        canvas = Canvas((width + _extra_width(labels), height), layout="constrained")
        draw(canvas.add_subplot())
        buffer = io.BytesIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _average_neighbors(points: Sequence[tuple[float, float]]) -> tuple[np.ndarray, np.ndarray]:
    """Average neighboring points (x, y) in at most `_MAX_CURVE_POINTS` groups; return xs [N] and ys [N].

    Without averages, the noise of a long run would hide its curve.
    """
    groups = np.array_split(np.array(points), min(len(points), _MAX_CURVE_POINTS))
    xs, ys = np.array([group.mean(axis=0) for group in groups]).T
    return xs, ys


def _shorten_labels(labels: Sequence[str]) -> list[str]:
    """Return labels of one figure with at most `_MAX_LABEL_LENGTH` characters, long ones without their middle.

    Names of models differ at the beginning, or at the end, where a report adds a directory. If two different labels
    would become equal, all labels are returned in full.
    """
    printable = [strip_unprintable(label) for label in labels]
    shortened = [_shorten(label) for label in printable]
    return shortened if len(set(shortened)) == len(set(printable)) else printable


def _shorten(label: str) -> str:
    if len(label) <= _MAX_LABEL_LENGTH:
        return label
    half = _MAX_LABEL_LENGTH // 2
    return f"{label[: half - 1]}…{label[-half:]}"


def _extra_width(labels: Sequence[str]) -> float:
    """Return the inches by which a figure is wider than usual, so that labels in full leave space for the axes."""
    excess = max(map(len, labels), default=0) - _MAX_LABEL_LENGTH
    return _INCHES_PER_CHARACTER * max(excess, 0)


def _use_plain_ticks(axis: Axis, *, integer: bool = False) -> None:
    """Label an axis at no more than six round numbers, without exponents: 12k for 12,000."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    def format_tick(value: float, _: object) -> str:
        if abs(value) >= 10_000:
            return f"{value / 1000:,.10g}k"
        if value == round(value):
            return f"{value:,.0f}"
        return f"{value:.4g}"

    axis.set_major_locator(MaxNLocator(5, integer=integer, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(format_tick))
