"""The report's drawings: curves of pretraining, similarity by layer, parameters against scores."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from albert_cli.evaluation import plots
from albert_cli.evaluation.page import Markup, figure, join, key, tag
from albert_cli.experiments.outcome import Outcome

_CURVES = {
    "mlm_loss": ("Masked-word loss", "Nats a masked token, on held-out text while training.", False),
    "mlm_accuracy": ("Masked words right", "Per cent, on held-out text while training.", True),
    "order_accuracy": ("Sentence loss: pairs right", "Per cent, of the pairs that each run trains on, held out.", True),
}
_LAYERS = {
    "l2": ("Distance from a layer’s input to its output", "Euclidean, mean over tokens of held-out text."),
    "degrees": ("Angle between a layer’s input and its output", "Degrees, mean over tokens of held-out text."),
}


def section(found: Outcome) -> Markup | None:
    """All drawings for which there are numbers; None when there are none."""
    colours = {name: i for i, name in enumerate(found.plan.variants, start=1)}
    panels = [*_layers(found, colours), *_curves(found, colours), *_against_parameters(found, colours)]
    if not panels:
        return None
    titles = found.plan.experiment.variants
    legend = tag("p", *(key(titles[n].title, (c - 1) % plots.SERIES + 1) for n, c in colours.items()))
    return join(legend, tag("div", *panels, class_="grid"))


def _curves(found: Outcome, colours: dict[str, int]) -> list[Markup]:
    panels = []
    for name, (title, said, percent) in _CURVES.items():
        lines = [
            plots.Line(points, colours[variant], "thin")
            for variant in colours
            for points in found.curves.get(variant, {}).get(name, [])
            if len(points) > 1
        ]
        if lines:
            drawing = plots.curves(lines, percent=percent, describes=f"{title} over steps")
            panels.append(figure(drawing, said, title=title))
    return panels


def _layers(found: Outcome, colours: dict[str, int]) -> list[Markup]:
    if "layers" not in found.plan.experiment.plots:
        return []
    panels = []
    for name, (title, said) in _LAYERS.items():
        lines = [
            plots.Line([(layer, y) for layer, y in enumerate(ys, start=1)], colours[variant], "marked")
            for variant in colours
            for ys in found.layer_steps.get(variant, {}).get(name, [])
        ]
        if lines:
            drawing = plots.curves(lines, describes=f"{title}, by layer", from_zero=True, x_label="layer")
            panels.append(figure(drawing, said, title=title))
    return panels


def _against_parameters(found: Outcome, colours: dict[str, int]) -> list[Markup]:
    """Scores against parameters, a mark a variant: medians over seeds."""
    panels = []
    for metric, title in (("tasks_mean", "Mean of the tasks"), ("mlm_accuracy", "Masked words right")):
        marks = [
            plots.Mark(parameters, 100 * score, found.plan.experiment.variants[name].title, colours[name])
            for name in colours
            if (parameters := found.middle(name, "parameters")) and (score := found.middle(name, metric)) is not None
        ]
        if len({mark.x for mark in marks}) > 1:
            drawing = plots.marked(marks, describes=f"{title} against parameters", x_label="parameters")
            panels.append(figure(drawing, "Per cent, median over seeds.", title=f"{title}, by parameters"))
    return panels or _parameters(found, colours)


def _parameters(found: Outcome, colours: dict[str, int]) -> list[Markup]:
    """Parameters alone, where nothing was trained: the share that each variant has of the largest."""
    counts = {name: found.middle(name, "parameters") for name in colours}
    known: Sequence[tuple[str, float]] = [(name, value) for name, value in counts.items() if value]
    if len({value for _, value in known}) < 2 or not found.plan.experiment.is_counted:
        return []
    rows = [
        plots.Row(
            found.plan.experiment.variants[name].title, [value / 1e8], statistics.median([value / 1e8]), colours[name]
        )
        for name, value in known
    ]
    drawing = plots.dots(rows, describes="Parameters of every model, in millions")
    return [figure(drawing, "Millions.", title="Parameters")]
