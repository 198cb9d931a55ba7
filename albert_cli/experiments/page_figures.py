"""Make the figures of an experiment's report from its outcome; each variant has the same color in all of them."""

from __future__ import annotations

from functools import partial
from typing import Final

from albert_cli.experiments.outcome import Outcome
from albert_cli.experiments.plan import ExperimentPlan
from albert_cli.report import figures
from albert_cli.report.figures import DotRow, Figure, LabeledPoint, LineSeries, series_color

# The title and the caption of each metric's figure.
_CURVES: Final = {
    "mlm_loss": ("MLM loss", "Nats per masked token, on held-out text during training."),
    "mlm_accuracy": ("MLM accuracy", "Percent, on held-out text during training."),
    "order_accuracy": ("Sentence-pair accuracy", "Percent, on held-out pairs of the kind that each run trains on."),
}
# The title and the caption of the figure of each measure of distance.
_LAYERS: Final = {
    "l2": ("Distance between a layer’s input and output", "Euclidean, mean over tokens of held-out text."),
    "degrees": ("Angle between a layer’s input and output", "Degrees, mean over tokens of held-out text."),
}


def choose_colors(plan: ExperimentPlan) -> dict[str, str]:
    """Return the color of each variant."""
    return {name: series_color(number) for number, name in enumerate(plan.variants)}


def make_figures(outcome: Outcome) -> list[Figure]:
    """Return the figures for which the outcome has values."""
    colors = choose_colors(outcome.plan)
    layers = _make_layer_figures(outcome, colors)
    curves = _make_curve_figures(outcome, colors)
    return layers + curves + _make_parameter_figures(outcome, colors)


def _make_layer_figures(outcome: Outcome, colors: dict[str, str]) -> list[Figure]:
    """Return Figure 1 of the paper: how far each layer moves its input, with a line for each run.

    There is one figure for each measure of distance, and none if the recipe does not request them.
    """
    if "layers" not in outcome.plan.experiment.plots:
        return []
    drawings = []
    for measure, (title, caption) in _LAYERS.items():
        series = [
            LineSeries(list(enumerate(distances, start=1)), color, "marked")
            for variant, color in colors.items()
            for distances in outcome.layer_distances.get(variant, {}).get(measure, [])
        ]
        if series:
            draw = partial(figures.draw_curves, series, from_zero=True, x_label="layer")
            drawings.append(Figure(title, f"{title}, by layer", draw, caption))
    return drawings


def _make_curve_figures(outcome: Outcome, colors: dict[str, str]) -> list[Figure]:
    """Return figures of loss and accuracies on held-out text during pretraining, with a line for each run."""
    drawings = []
    for metric, (title, caption) in _CURVES.items():
        series = [
            LineSeries(curve, color)
            for variant, color in colors.items()
            for curve in outcome.curves.get(variant, {}).get(metric, [])
            if len(curve) > 1
        ]
        if series:
            draw = partial(figures.draw_curves, series, percent=metric.endswith("_accuracy"))
            drawings.append(Figure(title, f"{title} over steps", draw, caption))
    return drawings


def _make_parameter_figures(outcome: Outcome, colors: dict[str, str]) -> list[Figure]:
    """Return figures of median scores over parameters, or of only the parameters if nothing is trained.

    If all variants have the same number of parameters there is no figure.
    """
    titles = {name: outcome.plan.title(name) for name in colors}
    medians = {name: outcome.median(name, "parameters") for name in colors}
    counts = {name: count for name, count in medians.items() if count}
    if len(set(counts.values())) < 2:
        return []
    if outcome.plan.experiment.is_counted:
        # `draw_dots` multiplies its values by 100, so it shows parameters divided by 1e8 in millions.
        rows = [DotRow(titles[name], [count / 1e8], count / 1e8, colors[name]) for name, count in counts.items()]
        draw = partial(figures.draw_dots, rows)
        return [Figure("Parameters", "Parameters of every model, in millions", draw, "Millions.")]
    drawings = []
    for metric, title in (("tasks_mean", "Mean of the tasks"), ("mlm_accuracy", "MLM accuracy")):
        points = [
            LabeledPoint(counts[name], 100 * score, titles[name], colors[name])
            for name in counts
            if (score := outcome.median(name, metric)) is not None
        ]
        if len({point.x for point in points}) > 1:
            draw = partial(figures.draw_points, points)
            caption = "Percent, median over seeds."
            drawings.append(Figure(f"{title}, by parameters", f"{title} over parameters", draw, caption))
    return drawings
