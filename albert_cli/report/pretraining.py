"""The report's section on pretraining: curves of all runs, and a table of their settings and last scores.

The functions take runs, and return figures and tables. Losses are in nats per masked token. Accuracies are 0 to 1 in
the runs and percent on the page. A corpus is a held-out text; "" is the held-out part of a run's data.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from albert_cli.console import format_duration
from albert_cli.counting.costs import count_parameters
from albert_cli.errors import AlbertError
from albert_cli.model.config import ModelConfig
from albert_cli.report import figures
from albert_cli.report.collect import Curve, PretrainingRun
from albert_cli.report.figures import Figure, LegendEntry, LineSeries, LineStyle
from albert_cli.report.render import Table
from albert_cli.report.scores import Colors, Fact

_ACCURACIES = {
    "mlm_accuracy": "MLM accuracy",
    "order_accuracy": "sentence-pair accuracy",  # on the pair task that the run trains
    # Each of these two exists only if the run trains another pair task.
    "nsp_accuracy": "NSP accuracy",
    "sop_accuracy": "SOP accuracy",
}
_MAX_ROWS = 12  # for each run and corpus in the table of held-out scores; the last step may add one row


@dataclass(frozen=True)
class PretrainingSection:
    """Curves of all runs as figures and as a table of numbers, and a table of the runs' settings and last scores."""

    legend: Sequence[LegendEntry]
    figures: Sequence[Figure]
    numbers: Table | None
    settings: Table


def summarize_run(runs: Sequence[PretrainingRun]) -> list[Fact]:
    """Return the last held-out scores for the top of the page if there is a single run; empty for several runs."""
    if len(runs) != 1:
        return []
    run = runs[0]
    facts = []
    loss = run.last_heldout("mlm_loss")
    if loss is not None:
        entropy = run.last_heldout("unigram_entropy")
        comparison = "nats per masked token"
        if entropy is not None:
            comparison = f"nats; the unigram entropy is {entropy:.2f}"
        facts.append(Fact("Held-out MLM loss", f"{loss:.2f}", comparison))
    comparisons = {
        "mlm_accuracy": "percent of the held-out masked tokens",
        "order_accuracy": f"percent of the held-out pairs; chance is {100 * _chance(run):.0f}",
    }
    for metric, comparison in comparisons.items():
        accuracy = run.last_heldout(metric)
        if accuracy is not None:
            facts.append(Fact(_metric_title(metric), f"{100 * accuracy:.1f}", comparison))
    return facts


def make_pretraining_section(runs: Sequence[PretrainingRun], colors: Colors) -> PretrainingSection:
    """Return curves of loss, accuracy and speed, and tables of the runs' settings and scores."""
    corpora = dict.fromkeys(corpus for run in runs for corpus in run.heldout)
    drawings = [figure for corpus in corpora for figure in _make_corpus_figures(runs, corpus, colors)]
    speed = _make_series({run.name: run.training.get("tokens_per_second", []) for run in runs}, colors, "thin")
    if speed:
        draw = partial(figures.draw_curves, speed, from_zero=True)
        drawings.append(Figure("Speed", "Speed over steps", draw, "Tokens per second."))
    legend = []
    if len(runs) > 1:
        legend = [LegendEntry(run.name, colors[run.name]) for run in runs]
    return PretrainingSection(legend, drawings, _tabulate_curves(runs), _tabulate_settings(runs))


def _metric_title(metric: str) -> str:
    """Return the title of an accuracy, beginning with a capital letter."""
    title = _ACCURACIES[metric]
    return title[0].upper() + title[1:]


def _chance(run: PretrainingRun) -> float:
    """Return the accuracy of guessing the label of a sentence pair: 1/3 for three-way pretraining, else 1/2."""
    data = run.recipe.get("data")
    is_three_way = isinstance(data, dict) and data.get("sentence_loss") == "three-way"
    return 1 / 3 if is_three_way else 1 / 2


def _make_series(curves: Mapping[str, Curve], colors: Colors, style: LineStyle) -> list[LineSeries]:
    """Return the curves of the runs as series, each in the color of its run; empty curves are left out."""
    return [LineSeries(curve, colors[name], style) for name, curve in curves.items() if curve]


def _make_corpus_figures(runs: Sequence[PretrainingRun], corpus: str, colors: Colors) -> list[Figure]:
    """Return figures of loss and accuracies on one corpus; corpus "" also has the training loss and unigram entropy."""
    suffix = f", {corpus}" if corpus else ""
    losses = _make_series({run.name: run.heldout_curve("mlm_loss", corpus) for run in runs}, colors, "marked")
    entropy_levels: dict[float, str] = {}  # the titles of horizontal lines, by height
    legend = []
    caption = "Nats per masked token."
    if corpus == "":
        losses += _make_series({run.name: run.training.get("mlm_loss", []) for run in runs}, colors, "faint")
        entropies = [run.last_heldout("unigram_entropy") for run in runs]
        entropy_levels = {value: f"unigram entropy {value:.2f}" for value in entropies if value is not None}
        caption += " Faint: training."
    if len(runs) == 1:
        legend = [LegendEntry(corpus or "held-out", colors[runs[0].name], "line")]
    drawings = []
    if losses:
        title = f"MLM loss{suffix}"
        draw = partial(figures.draw_curves, losses, entropy_levels)
        drawings.append(Figure(title, f"{title} over steps", draw, caption, legend))
    for metric in ("mlm_accuracy", "order_accuracy"):
        series = _make_series({run.name: run.heldout_curve(metric, corpus) for run in runs}, colors, "marked")
        if series:
            title = _metric_title(metric) + suffix
            chance_levels = {}
            if metric == "order_accuracy":
                chance_levels = {_chance(run): "chance" for run in runs}
            draw = partial(figures.draw_curves, series, chance_levels, percent=True)
            drawings.append(Figure(title, f"{title} over steps", draw, f"Percent, on {corpus or 'held-out text'}."))
    return drawings


def _tabulate_curves(runs: Sequence[PretrainingRun]) -> Table | None:
    """Return a table of the held-out curves, or None without any.

    For each run and corpus it has at most `_MAX_ROWS` evenly spaced steps, and the last step.
    """
    titles = {"mlm_loss": "MLM loss (nats)"}
    titles |= {metric: f"{title} (%)" for metric, title in _ACCURACIES.items()}
    scored = [(run, corpus) for run in runs for corpus in run.heldout]
    metrics = [metric for metric in titles if any(run.heldout_curve(metric, corpus) for run, corpus in scored)]
    rows = []
    for run, corpus in scored:
        curves = {metric: dict(run.heldout_curve(metric, corpus)) for metric in metrics}
        steps = sorted({step for curve in curves.values() for step in curve})
        stride = max(1, math.ceil(len(steps) / _MAX_ROWS))
        for step in sorted({*steps[::stride], *steps[-1:]}):
            cells = [_format_metric(metric, curves[metric].get(step)) for metric in metrics]
            rows.append([run.name, corpus or "held-out", f"{step:,.0f}", *cells])
    if not rows:
        return None
    return Table(["run", "text", "step", *(titles[metric] for metric in metrics)], rows)


def _format_metric(metric: str, value: float | None) -> str:
    """Format a loss in nats, or an accuracy in percent."""
    if value is None:
        return "–"
    return f"{value:.3f}" if metric == "mlm_loss" else f"{100 * value:.1f}"


def _tabulate_settings(runs: Sequence[PretrainingRun]) -> Table:
    """Return a table with a column for each run, and a row for each setting or score that a run has."""
    columns = [{**_list_settings(run), **_list_scores(run)} for run in runs]
    labels = dict.fromkeys(label for column in columns for label in column)
    rows = [[label, *(column.get(label, "–") for column in columns)] for label in labels]
    return Table(["", *(run.name for run in runs)], rows)


def _list_settings(run: PretrainingRun) -> dict[str, str]:
    """Return the shape of the run's model, its steps, batch size and maximum length, as text by label.

    The shape is left out if this version of albert cannot read the recipe.
    """
    settings = {}
    model = run.recipe.get("model")
    if isinstance(model, dict):
        with suppress(AlbertError):
            config = ModelConfig.from_values(model, run.name)
            sizes = f"H {config.hidden_size}, E {config.embedding_size}, {config.num_attention_heads} heads"
            settings["shape"] = f"{config.num_hidden_layers} layers, {sizes}"
            if config.is_sparse:
                settings["attention"] = config.attention_summary
            settings["shared weights"] = config.sharing
            settings["parameters"] = f"{count_parameters(config).total:,}"
    recorded_steps = [step for step, _ in (*run.training.get("loss", []), *run.heldout_curve("mlm_loss"))]
    planned = run.setting("schedule", "total_steps")
    if recorded_steps:
        last_step = max(recorded_steps)
        settings["steps"] = f"{last_step:,.0f}"
        if planned and planned != last_step:
            settings["steps"] += f" of {planned:,.0f}"
    numbers = {
        "batch size": run.setting("train", "batch_size"),
        "maximum length": run.setting("data", "max_seq_length"),
    }
    return settings | {label: f"{number:,.0f}" for label, number in numbers.items() if number is not None}


def _list_scores(run: PretrainingRun) -> dict[str, str]:
    """Return the last scores of the run on each corpus, its speed and its time, as text by label."""
    scores = {}
    for corpus in run.heldout:
        prefix = f"{corpus}: " if corpus else "held-out "
        loss = run.last_heldout("mlm_loss", corpus)
        if loss is not None:
            scores[f"{prefix}MLM loss (nats)"] = f"{loss:.3f}"
        entropy = run.last_heldout("unigram_entropy", corpus)
        if entropy is not None and not corpus:
            scores["unigram entropy of the held-out text (nats)"] = f"{entropy:.3f}"
        for metric, title in _ACCURACIES.items():
            accuracy = run.last_heldout(metric, corpus)
            if accuracy is not None:
                scores[f"{prefix}{title} (%)"] = f"{100 * accuracy:.1f}"
    speeds = [value for _, value in run.training.get("tokens_per_second", [])]
    if speeds:
        scores["tokens per second (median)"] = f"{statistics.median(speeds):,.0f}"
    seconds = [value for _, value in run.training.get("seconds", [])]  # since the start of the run
    if seconds:
        scores["time"] = format_duration(max(seconds))
    return scores
