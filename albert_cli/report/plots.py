"""Drawings as SVG inside the page: the text is in the page's font, the colours follow its theme.

The same numbers give the same bytes. matplotlib is imported when the first drawing is made.
"""

from __future__ import annotations

import html
import io
import itertools
import logging
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from albert_cli.report.page import SERIES, Drawing, clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 500  # of a scatter; more make the page large and show no more
_OF_A_CURVE, _OF_A_LABEL = 300, 24  # points and characters that are drawn at most
# matplotlib wants fixed colours; these stand for the page's variables and are replaced in its output.
_INK, _MUTED, _RULE = "#010101", "#020202", "#030303"
_VARIABLES = {_INK: "--ink", _MUTED: "--muted", _RULE: "--rule"} | {
    f"#0000{n:02x}": f"--s{n}" for n in range(1, SERIES + 1)
}
_STYLE: Any = {  # (matplotlib's stubs spell out the keys of their own release)
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 11,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": _RULE,
    "grid.linewidth": 0.7,
    "xtick.color": _RULE,
    "ytick.color": _RULE,
    "xtick.labelcolor": _MUTED,
    "ytick.labelcolor": _MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}
Kind = Literal["thin", "faint", "marked"]
_KINDS: Mapping[Kind, dict[str, Any]] = {
    "thin": {"linewidth": 1.2, "alpha": 0.85},
    "faint": {"linewidth": 1.2, "alpha": 0.45},
    "marked": {"marker": "o", "markersize": 3.6},
}


@dataclass(frozen=True)
class Line:
    """One curve: (x, y) points, its series (colour), and whether it is drawn thin, faint or with marks."""

    points: Sequence[tuple[float, float]]
    series: int
    kind: Kind


@dataclass(frozen=True)
class Row:
    """A row of a dot plot: a model's scores with the median marked, or a baseline's single score."""

    label: str
    scores: Sequence[float]
    median: float | None
    series: int | None = None
    hollow: Sequence[bool] = ()  # which of the scores are rings


@dataclass(frozen=True)
class Trend:
    """Scores by a count, with a line through their medians: coloured for a model, broken for a baseline."""

    label: str
    scores: Mapping[float, Sequence[float]]
    series: int | None = None
    dashed: bool = False  # a baseline: dashes, else dots


@dataclass(frozen=True)
class Mark:
    """A labelled point of a scatter plot."""

    x: float
    y: float
    label: str
    series: int


def colour(series: int | None) -> str:
    """The stand-in for a series' colour; past the last they begin again."""
    return _MUTED if series is None else f"#0000{(series - 1) % SERIES + 1:02x}"


def curves(
    lines: Sequence[Line],
    levels: Mapping[float, str] = {},
    *,
    describes: str,
    percent: bool = False,
    from_zero: bool = False,
    x_label: str = "step",
) -> Drawing:
    """Curves over steps, or what `x_label` says; `levels` are horizontal lines to compare with, by their height.

    `describes` is what a screen reader says; `percent` shows 0..1 as 0..100.
    """

    def draw(axes: Axes) -> None:
        scale = 100.0 if percent else 1.0
        for line in lines:
            xs, ys = zip(*_thinned(line.points), strict=True) if line.points else ((), ())
            axes.plot(xs, [scale * y for y in ys], color=colour(line.series), **_KINDS[line.kind])
        axes.margins(x=0.02, y=0.12)
        for level, label in levels.items():
            axes.axhline(scale * level, color=_MUTED, linestyle=(0, (4, 3)), linewidth=1.1)
            _write(axes, label, (0.99, scale * level), (0, 4), ("axes fraction", "data"), _MUTED, ha="right")
        if from_zero:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(x_label)
        _plain_ticks(axes)

    return _draw(draw, describes)


def bars(labels: Sequence[str], shares: Sequence[float], expected: Sequence[float] = (), *, describes: str) -> Drawing:
    """Shares of 0..1 as bars in per cent, each with its value above; and what was expected of each as a line."""

    def draw(axes: Axes) -> None:
        places = range(len(labels))
        tops = [100 * share for share in shares]
        axes.bar(places, tops, width=0.62, color=colour(1))
        for place, share in enumerate(expected):
            axes.plot([place - 0.4, place + 0.4], [100 * share] * 2, color=colour(2), linewidth=2.4)
        for place, top in enumerate(tops):
            above = max(top, 100 * expected[place]) if expected else top
            _write(axes, f"{top:.1f}", (place, above), (0, 4))
        axes.set_xticks(places, labels, size=9 if len(labels) > 6 else 11)  # else neighbours would touch
        axes.margins(y=0.14)

    return _draw(draw, describes, bottom=0.17 if any("\n" in label for label in labels) else 0.11)


def scatter(points: Sequence[tuple[float, float]], series: int, *, describes: str) -> Drawing:
    """Points (x, y), of many every n-th, and the line where both are equal."""
    shown = points[:: -(-len(points) // POINTS)]
    low, high = min(min(p) for p in points), max(max(p) for p in points)

    def draw(axes: Axes) -> None:
        axes.plot([low, high], [low, high], color=_MUTED, linewidth=1.1)
        style: dict[str, Any] = {"marker": "o", "markersize": 3.6, "linestyle": "none", "markeredgewidth": 0}
        axes.plot([x for x, _ in shown], [y for _, y in shown], color=colour(series), alpha=0.45, **style)
        axes.set_xlabel("what it is")
        _plain_ticks(axes)

    return _draw(draw, describes)


def dots(rows: Sequence[Row], *, describes: str) -> Drawing:
    """Every score as a dot, one row a model, the median as a bar; scores are shown times 100."""
    width, row_height, foot = 5.4, 0.32, 0.32
    height = row_height * len(rows) + foot
    labels = [_shortened(row.label) for row in rows]
    left = 0.04 + 0.0165 * max(len(label) for label in labels)

    def draw(axes: Axes) -> None:
        for place, row in enumerate(reversed(rows)):
            scores = [100 * score for score in row.scores]
            if row.median is None:
                axes.plot(scores, [place], marker="D", markersize=5, color=_MUTED, linestyle="none")
                continue
            rings = row.hollow or [False] * len(scores)
            for score, height, hollow in zip(scores, _beside(place, scores), rings, strict=True):
                face: dict[str, Any] = {"markerfacecolor": "none"} if hollow else {"markeredgewidth": 0}
                size, ink = 5.5 if hollow else 6.5, colour(row.series)
                axes.plot([score], [height], "o", markersize=size, color=ink, alpha=0.75, **face)
            axes.plot([100 * row.median] * 2, [place - 0.34, place + 0.34], color=colour(row.series), linewidth=2.4)
        axes.set_yticks(range(len(rows)), labels[::-1])
        axes.tick_params(axis="y", labelcolor=_INK, pad=8)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        every = [100 * score for row in rows for score in row.scores]
        middle, reach = (min(every) + max(every)) / 2, max(max(every) - min(every), 1.0) * 0.56
        axes.set_xlim(middle - reach, middle + reach)  # at least a point wide: less is no difference
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        _plain_ticks(axes, "x")

    return _draw(draw, describes, (width, height), left=left, right=0.97, top=0.985, bottom=foot / height)


def marked(marks: Sequence[Mark], *, describes: str, x_label: str) -> Drawing:
    """A dot for each mark with its label beside it, over a logarithmic x."""

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        # Labels of neighbours stand above and below by turns, so that they do not hide each other.
        for place, mark in enumerate(sorted(marks, key=lambda mark: mark.x)):
            axes.plot([mark.x], [mark.y], marker="o", markersize=7, color=colour(mark.series), markeredgewidth=0)
            _write(axes, _shortened(mark.label), (mark.x, mark.y), (0, -15 if place % 2 else 7))
        axes.set_xscale("log")
        axes.margins(x=0.2, y=0.2)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:,.3g} M"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        _plain_ticks(axes, "y")
        axes.set_xlabel(x_label)

    return _draw(draw, describes)


def trends(found: Sequence[Trend], *, describes: str, x_label: str) -> Drawing:
    """Scores, shown times 100, over a count on a logarithmic axis, each line with its name at its end."""
    size, edges = (9.6, 4.3), {"left": 0.045, "right": 0.76, "top": 0.98, "bottom": 0.115}

    def draw(axes: Axes) -> None:
        from matplotlib.ticker import NullLocator

        ends = []
        for trend in found:
            counts, ink = sorted(trend.scores), colour(trend.series)
            medians = [100 * statistics.median(trend.scores[count]) for count in counts]
            broken = (0, (5, 3)) if trend.dashed else (0, (1, 2.5))
            axes.plot(
                counts, medians, color=ink, linestyle="-" if trend.series else broken,
                linewidth=2.2 if trend.series else 1.4,
            )  # fmt: skip
            for count in counts if trend.series else ():
                seeds = [100 * score for score in trend.scores[count]]
                axes.plot([count] * len(seeds), seeds, "o", markersize=6, color=ink, alpha=0.75, markeredgewidth=0)
            ends.append((medians[-1], counts[-1], f"{_shortened(trend.label)}  {medians[-1]:.1f}", ink))
        axes.set_xscale("log")
        counts = sorted({count for trend in found for count in trend.scores})
        axes.set_xticks(counts, [f"{count:,.0f}" for count in counts])
        axes.xaxis.set_minor_locator(NullLocator())
        _plain_ticks(axes, "y")
        axes.margins(x=0.03, y=0.06)
        axes.set_xlabel(x_label)
        _name_ends(axes, sorted(ends), 72 * size[1] * (edges["top"] - edges["bottom"]))

    return _draw(draw, describes, size, **edges)


def _name_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]], height: float) -> None:
    """Write names, lowest first, beside points (y, x, name, colour), moved as little as keeps them from touching."""
    from sklearn.isotonic import isotonic_regression

    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    places, lines = [height * (y - low) / (high - low) for y, *_ in ends], [15.0 * i for i in range(len(ends))]
    apart = isotonic_regression([place - line for place, line in zip(places, lines, strict=True)])
    for (y, x, name, ink), place, line, moved in zip(ends, places, lines, apart, strict=True):
        axes.annotate(
            name, (x, y), (14, moved + line - place), textcoords="offset points", va="center", color=ink, size=12,
            annotation_clip=False,
        )  # fmt: skip


# ---------------------------------------------------------------- how


def _write(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], coordinates: Any = "data",
    ink: str = _INK, ha: str = "center",
) -> None:  # fmt: skip
    axes.annotate(text, at, offset, xycoords=coordinates, textcoords="offset points", ha=ha, color=ink, size=10)


def _draw(draw: Any, describes: str, size: tuple[float, float] = (5.4, 3.1), **edges: float) -> Drawing:
    """matplotlib's file as an element of the page: no prologue, no styles or ids, the page's colours."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would tell that there is no home to keep fonts in
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE | {"svg.hashsalt": clean(describes)}):  # of which it makes ids, unique on the page
        figure = Figure(size)
        figure.subplots_adjust(**{"left": 0.115, "right": 0.985, "top": 0.97, "bottom": 0.15} | edges)
        draw(figure.add_subplot())
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    body = buffer.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<(metadata|style).*?</\1>", "", body, flags=re.DOTALL)
    body = re.sub(r' id="[\w.]+_\d+"', "", body)  # of axes, ticks and texts, to which nothing refers
    body = re.sub(r"font-family: [^;\"]*;? ?", "", body)
    for stand_in, variable in _VARIABLES.items():
        body = body.replace(stand_in, f"var({variable})")
    view = re.search(r'viewBox="([^"]+)"', body)
    inner = body[body.index(">") + 1 :]
    opening = f'<svg viewBox="{view[1] if view else ""}" role="img" aria-label="{html.escape(clean(describes))}">'
    return Drawing(opening + re.sub(r"\n\s*", "\n", inner).strip(), describes)


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """At most `_OF_A_CURVE` points: neighbours are averaged, so that a long run is a line and not a cloud."""
    if len(points) <= _OF_A_CURVE:
        return points
    edges = [i * len(points) // _OF_A_CURVE for i in range(_OF_A_CURVE + 1)]
    groups = [points[a:b] for a, b in itertools.pairwise(edges)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups]


def _beside(place: int, scores: Sequence[float]) -> list[float]:
    """Heights for dots in a row: those that would hide each other are moved apart."""
    span = (max(scores) - min(scores)) or 1.0
    heights: list[float] = []
    for i, score in enumerate(scores):
        near = sum(abs(other - score) < 0.015 * span for other in scores[:i])
        heights.append(place + (0.0, 0.2, -0.2)[near % 3])
    return heights


def _shortened(label: str) -> str:
    label = clean(label)
    return label if len(label) <= _OF_A_LABEL else label[: _OF_A_LABEL - 1] + "…"


def _plain_ticks(axes: Axes, which: Literal["x", "y", "xy"] = "xy") -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    def write(value: float, _: object) -> str:
        if abs(value) >= 10_000:
            return f"{value / 1000:,.4g}k"
        return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"

    for name in which:
        axis, most = (axes.xaxis, 6) if name == "x" else (axes.yaxis, 5)
        axis.set_major_locator(MaxNLocator(most, integer=which == "xy" and name == "x", steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(write))
