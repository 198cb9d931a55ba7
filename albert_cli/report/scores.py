"""The report's sections on tasks: scores next to baselines and published models, every seed, learning curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from albert_cli.evaluation import tables
from albert_cli.formatting import format_percent, join_words
from albert_cli.report import figures
from albert_cli.report.collect import CLASSICAL, Evaluation
from albert_cli.report.figures import DotRow, Figure, LegendEntry, LineSeries, TrendSeries
from albert_cli.report.render import Cell, Table
from albert_cli.results import EvaluationResult, RunResult, ScoredResult, standard_error
from albert_cli.tasks.published import load_published_scores
from albert_cli.tasks.registry import paper_metric_names

_METRIC_TITLES = {
    "mcc": "Matthews correlation",
    "f1": "F1",
    "best_f1": "F1 at the best threshold",
    "macro_f1": "macro F1",
    "micro_f1": "micro F1",
    "entity_f1": "entity F1",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
}
Colors = Mapping[str, str]  # by model
TaskGroup = Sequence[Evaluation]  # the evaluations of one task


@dataclass(frozen=True)
class Fact:
    """A number at the top of the page with its name and what to compare it with."""

    name: str
    value: str
    comparison: str


@dataclass(frozen=True)
class ScoresSection:
    """Scores by task and model, published scores of the same tasks, dot plots and protocols."""

    table: Table
    published: Table | None
    figures: Sequence[Figure]
    has_collapsed: bool
    protocols: Sequence[str]


@dataclass(frozen=True)
class LabelCurve:
    """Scores by the number of labeled training examples, as a figure and as a table."""

    figure: Figure
    table: Table


def list_models(evaluations: TaskGroup) -> list[str]:
    """Return the models' names, controls last."""
    return list(dict.fromkeys(e.model for e in sorted(evaluations, key=lambda e: e.control)))


def group_by_task(evaluations: TaskGroup) -> list[TaskGroup]:
    """Group evaluations by task, controls last. Of samples of the training examples only the largest counts."""
    groups: list[TaskGroup] = []
    for identity in dict.fromkeys(e.task_identity for e in evaluations):
        same_task = (e for e in evaluations if e.task_identity == identity)
        group = sorted(same_task, key=lambda e: (-(e.sample_size or math.inf), e.control))
        groups.append([e for e in group if e.sample_size == group[0].sample_size])
    return groups


def summarize_best(evaluations: TaskGroup, limit: int) -> list[Fact]:
    """Return the best median of up to `limit` tasks next to the other models; the widest lead over controls first."""

    def lead(group: TaskGroup) -> float:
        controls = [e.median for e in group if e.control]
        return max(e.median for e in group) - max([*controls, *_merge_baselines(group).values()], default=0.0)

    facts = []
    for group in sorted(group_by_task(evaluations), key=lead, reverse=True)[:limit]:
        best = max(group, key=lambda e: e.median)
        compared = {e.model: e.median for e in group if e is not best} | _merge_baselines(group)
        protocol = f"median of {len(best.scores)}" if len(best.scores) > 1 else _describe_single(best)
        name = f"{best.title}, {_metric_title(best.record.metric)}, {protocol}"
        comparison = ", ".join(f"{model} {format_percent(score)}" for model, score in compared.items())
        facts.append(Fact(name, format_percent(best.median), comparison))
    return facts


def make_scores_section(evaluations: TaskGroup, colors: Colors) -> ScoresSection:
    """Return the tables, figures and protocols of all evaluations."""
    groups = group_by_task(evaluations)
    return ScoresSection(
        table=_make_task_table(groups, list_models(evaluations)),
        published=_make_published_table(groups),
        figures=[_draw_scores(group, colors) for group in groups],
        has_collapsed=any(e.record.collapse_reasons for e in evaluations),
        protocols=_list_protocols(evaluations, groups),
    )


def draw_learning_curves(evaluations: TaskGroup, colors: Colors) -> list[Figure]:
    """Draw dev scores during fine-tuning, a line per seed; empty if no run saved any."""
    drawings = []
    for group in group_by_task([e for e in evaluations if e.curves]):
        series = [LineSeries(curve, colors[e.model]) for e in group for curve in e.curves]
        legend = [LegendEntry(e.model, colors[e.model], "line") for e in group]
        title = _group_title(group)
        image = figures.draw_curves(series, percent=True)
        drawings.append(Figure(title, f"{title}, on the development set over steps", image, legend=legend))
    return drawings


def make_label_curves(evaluations: TaskGroup, colors: Colors) -> list[LabelCurve]:
    """Return a figure and a table for each task that was trained on several numbers of examples."""
    labeled = sorted((e for e in evaluations if e.num_labeled), key=lambda e: e.control)
    curves = []
    for identity in dict.fromkeys(e.task_identity for e in labeled):
        group = [e for e in labeled if e.task_identity == identity]
        if any(e.sample_size for e in group) and len({e.num_labeled for e in group}) > 1:
            curves.append(_make_label_curve(group, colors))
    return curves


def _metric_title(name: str) -> str:
    return _METRIC_TITLES.get(name, name.replace("_", " "))


def _group_title(group: TaskGroup) -> str:
    return f"{group[0].title}, {_metric_title(group[0].record.metric)} × 100"


def _merge_baselines(group: TaskGroup) -> dict[str, float]:
    return {name: score for e in group for name, score in e.baselines.items()}


def _describe_single(evaluation: Evaluation) -> str:
    if evaluation.is_ensemble:
        return "selected on dev"
    return "not trained" if isinstance(evaluation.record, ScoredResult) else "1 seed"


# ---------------------------------------------------------------- scores


def _make_task_table(groups: Sequence[TaskGroup], models: Sequence[str]) -> Table:
    baselines = list(dict.fromkeys(name for group in groups for name in _merge_baselines(group)))
    rows = []
    for group in groups:
        best = max(e.median for e in group)
        by_model = {e.model: _score_cell(e, best) for e in group}
        cells = [by_model.get(model, "–") for model in models]
        cells += [_baseline_cell(group, name) for name in baselines]
        rows.append([Cell(group[0].title, [_metric_title(group[0].record.metric)]), *cells])
    return Table(["task", *models, *baselines], rows)


def _score_cell(evaluation: Evaluation, best: float) -> Cell:
    record = evaluation.record
    scores = sorted(evaluation.scores.values())
    if len(scores) > 1:
        spread = format_percent(scores[-1] - scores[0])
        error = format_percent(standard_error(scores))
        facts = [f"{len(scores)} seeds", f"spread {spread}", f"s.e. {error}"]
        notes = [", ".join(map(format_percent, scores))]
    else:
        facts = [_describe_single(evaluation)]
        notes = []
    for name, seeds in (("diverged", record.divergence_reasons), ("collapsed", record.collapse_reasons)):
        if seeds:
            facts.append(f"{len(seeds)} {name}")
    median = evaluation.median
    return Cell(format_percent(median), [", ".join(facts), *notes], is_best=median == best)


def _baseline_cell(group: TaskGroup, name: str) -> str | Cell:
    score = _merge_baselines(group).get(name)
    if score is None:
        return "–"
    model = next((e.record.best_baseline[0] for e in group if e.record.best_baseline), "")
    return Cell(format_percent(score), [model] if name == CLASSICAL and model else [])


def _draw_scores(group: TaskGroup, colors: Colors) -> Figure:
    rows = []
    for e in group:
        seeds = sorted(e.scores, key=lambda seed: e.scores[seed])
        is_collapsed = [seed in e.record.collapse_reasons for seed in seeds]
        rows.append(DotRow(e.model, [e.scores[seed] for seed in seeds], e.median, colors[e.model], is_collapsed))
    rows += [DotRow(name, [score]) for name, score in _merge_baselines(group).items()]
    medians = ", ".join(f"{e.model}: median {format_percent(e.median)} of {len(e.scores)}" for e in group)
    title = _group_title(group)
    return Figure(title, f"{title}. {medians}", figures.draw_dots(rows))


def _list_protocols(evaluations: TaskGroup, groups: Sequence[TaskGroup]) -> list[str]:
    """Return a sentence for all results that share a protocol, then notes on skipped intermediate tasks."""
    order = [group[0].task_identity for group in groups]
    titles_by_protocol: dict[tuple[str, str], list[str]] = {}
    notes: dict[str, None] = {}
    for e in sorted(evaluations, key=lambda e: (order.index(e.task_identity), -(e.sample_size or math.inf), e.control)):
        if isinstance(e.record, EvaluationResult | RunResult):
            titles_by_protocol.setdefault((e.model, tables.format_protocol(e.record)), []).append(e.title)
            if e.record.protocol.intermediate_note:
                notes[f"{e.title}: {e.record.protocol.intermediate_note}."] = None
    sentences = [f"{model} on {join_words(titles)}: {text}." for (model, text), titles in titles_by_protocol.items()]
    return [*sentences, *notes]


def _make_published_table(groups: Sequence[TaskGroup]) -> Table | None:
    """Return the best median of each task next to published scores; None if no task has published scores."""
    published = load_published_scores()
    groups = [group for group in groups if any(group[0].task in scores for scores in published.values())]
    models = [model for model, scores in published.items() if any(group[0].task in scores for group in groups)]
    if not groups:
        return None
    rows = []
    for group in groups:
        # Published rows are single models, so an ensemble counts only if there is nothing else.
        best = max([e for e in group if not e.is_ensemble] or group, key=lambda e: e.median)
        metrics = paper_metric_names(best.task)
        medians = best.record.medians
        if not set(metrics) <= set(medians):  # a result from elsewhere
            metrics = [best.record.metric]
            medians = {best.record.metric: best.median}
        ours = _scores_cell([format_percent(medians[metric]) for metric in metrics], is_best=True)
        cells = [
            _scores_cell([f"{score:.1f}" for score in published[model].get(best.task, {}).values()]) for model in models
        ]
        rows.append([Cell(best.title, [_metric_title(metrics[0])]), ours, *cells])
    return Table(["task", "here, best median", *models], rows)


def _scores_cell(scores: Sequence[str], *, is_best: bool = False) -> str | Cell:
    return Cell(scores[0], scores[1:], is_best) if scores else "–"


# ---------------------------------------------------------------- by number of labeled examples


def _make_label_curve(group: TaskGroup, colors: Colors) -> LabelCurve:
    scores: dict[str, dict[float, list[float]]] = {}  # model -> number of examples -> scores of the seeds
    for e in group:
        scores.setdefault(e.model, {})[e.num_labeled] = sorted(e.scores.values())
    for e in group:
        for name, score in e.baselines.items():
            scores.setdefault(name, {})[e.num_labeled] = [score]
    medians = {
        name: {count: statistics.median(seeds) for count, seeds in sorted(by_count.items())}
        for name, by_count in scores.items()
    }
    trends = [
        TrendSeries(name, by_count, colors.get(name, figures.MUTED), name not in colors)
        for name, by_count in scores.items()
    ]
    title = _group_title(group)
    words = "; ".join(
        f"{name}: {', '.join(f'{format_percent(median)} with {count:,.0f}' for count, median in by_count.items())}"
        for name, by_count in medians.items()
    )
    image = figures.draw_trends(trends, x_label="labeled examples")
    figure = Figure(title, f"{title}, by number of labeled examples. {words}", image)
    counts = sorted({count for by_count in scores.values() for count in by_count})
    best = {count: max(m[count] for m in medians.values() if count in m) for count in counts}
    rows = []
    for name, by_count in scores.items():
        cells: list[str | Cell] = [name]
        for count in counts:
            if count not in by_count:
                cells.append("–")
                continue
            seeds = by_count[count]
            median = medians[name][count]
            notes = [", ".join(map(format_percent, seeds))] if len(seeds) > 1 else []
            cells.append(Cell(format_percent(median), notes, is_best=median == best[count]))
        rows.append(cells)
    return LabelCurve(figure, Table(["labeled examples", *(f"{count:,.0f}" for count in counts)], rows))
