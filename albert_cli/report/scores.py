"""The report's sections on tasks: scores next to baselines and published models, every seed, learning curves.

The functions take evaluations, and return tables and figures. Scores are 0 to 1 in the evaluations and times 100 on the
page. The number for a model is the median of its seeds. Controls are the same model without pretraining. Baselines are
the majority class (for `ner` the most frequent tags) and the best linear model.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from albert_cli.evaluation import tables
from albert_cli.formatting import format_percent, join_words
from albert_cli.report import figures
from albert_cli.report.collect import CLASSICAL_BASELINE, Evaluation
from albert_cli.report.figures import DotRow, Figure, LegendEntry, LineSeries, TrendSeries
from albert_cli.report.render import Cell, Table
from albert_cli.results import EnsembleResult, EvaluationResult, RunResult, ScoredResult
from albert_cli.score_summary import standard_error
from albert_cli.tasks.base import TEST_SUFFIX
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
TaskGroup = Sequence[Evaluation]  # the evaluations of one task; never empty


@dataclass(frozen=True)
class Fact:
    """A number at the top of the page, with its name."""

    name: str
    value: str
    comparison: str  # the unit, or other numbers to compare this one with


@dataclass(frozen=True)
class ScoresSection:
    """Scores by task and model, published scores of the same tasks, dot plots and protocols."""

    table: Table
    split: str  # the split on which the scores were measured
    published: Table | None  # None if no task has published scores
    figures: Sequence[Figure]
    has_collapsed: bool  # True if a seed of any evaluation collapsed
    protocols: Sequence[str]  # the training settings behind the scores, in sentences


def list_models(evaluations: Sequence[Evaluation]) -> list[str]:
    """Return the models' names, controls last."""
    return list(dict.fromkeys(e.model for e in sorted(evaluations, key=lambda e: e.control_rank)))


def group_by_task(evaluations: Sequence[Evaluation]) -> list[TaskGroup]:
    """Group evaluations by task, controls last.

    A group has only the models that were trained on all examples; if there are none, those with the largest sample.
    Ensembles and scored checkpoints are always in the group of their task, because their results have no sample size.
    """
    groups: list[TaskGroup] = []
    for identity in dict.fromkeys(e.task_identity for e in evaluations):
        same_task = [e for e in evaluations if e.task_identity == identity]
        same_task.sort(key=lambda e: (_smaller_samples_last(e), e.control_rank))
        size = next((e.sample_size for e in same_task if e.record.training is not None), 0)
        groups.append([e for e in same_task if e.record.training is None or e.sample_size == size])
    return groups


def _smaller_samples_last(evaluation: Evaluation) -> float:
    """Return a sort key that puts models trained on all examples first, then the largest samples."""
    return -evaluation.sample_size if evaluation.sample_size else -math.inf


def summarize_best(evaluations: Sequence[Evaluation], limit: int) -> list[Fact]:
    """Return the best model's median on each of at most `limit` tasks, compared with other models and baselines.

    The tasks are those on which the best model's lead over controls and baselines is largest, the largest lead first. A
    control is the best model only if a task has no other model.
    """
    facts = []
    for group in sorted(group_by_task(evaluations), key=_lead, reverse=True)[:limit]:
        best = max(_prefer_pretrained(group), key=lambda e: e.median)
        compared = {e.model: e.median for e in group if e is not best} | _merge_baselines(group)
        protocol = _describe_single(best)
        if len(best.scores) > 1:
            protocol = f"median of {len(best.scores)}"
        name = f"{best.record.title}, {_metric_title(best.record.metric)} of {best.model} ({protocol})"
        comparison = ", ".join(f"{model} {format_percent(score)}" for model, score in compared.items())
        facts.append(Fact(name, format_percent(best.median), comparison))
    return facts


def _lead(group: TaskGroup) -> float:
    """Return the best median minus the best score of a control or a baseline, which counts as 0 without any."""
    compared = [e.median for e in group if e.control_rank > 0]
    compared += _merge_baselines(group).values()
    return max(e.median for e in _prefer_pretrained(group)) - max(compared, default=0.0)


def _prefer_pretrained(evaluations: TaskGroup) -> TaskGroup:
    """Return the evaluations without controls, or all of them if there are only controls."""
    return [e for e in evaluations if e.control_rank == 0] or evaluations


def make_scores_section(evaluations: Sequence[Evaluation], colors: Colors) -> ScoresSection:
    """Return the tables, figures and protocols of all evaluations."""
    groups = group_by_task(evaluations)
    return ScoresSection(
        # A model with only smaller samples than another has no score in these groups, so it has no column.
        table=_make_task_table(groups, list_models([e for group in groups for e in group])),
        split=_describe_split(groups),
        published=_make_published_table(groups),
        figures=[_make_score_figure(group, colors) for group in groups],
        has_collapsed=any(e.record.collapse_reasons for e in evaluations),
        protocols=_list_protocols(evaluations, groups),
    )


def _describe_split(groups: Sequence[TaskGroup]) -> str:
    """Return the name of the split on which the scores were measured; titles tell if tasks have different splits."""
    are_on_test_sets = [_is_on_test_set(group) for group in groups]
    if groups and all(are_on_test_sets):
        return "the test set"
    if any(are_on_test_sets):
        return f"the development set, or on the test set for a task with{TEST_SUFFIX}"
    return "the development set"


def _is_on_test_set(group: TaskGroup) -> bool:
    """Return True if the scores of a group were measured on the task's test set."""
    return group[0].record.title.endswith(TEST_SUFFIX)


def make_learning_curves(evaluations: Sequence[Evaluation], colors: Colors) -> list[Figure]:
    """Return a figure of the dev scores of each task during fine-tuning, with a line per seed, if a run has a curve."""
    drawings = []
    for group in group_by_task([e for e in evaluations if e.curves]):
        series = [LineSeries(curve, colors[e.model]) for e in group for curve in e.curves]
        legend = [LegendEntry(e.model, colors[e.model], "line") for e in group]
        title = _group_title(group)
        draw = partial(figures.draw_curves, series, percent=True)
        drawings.append(Figure(title, f"{title}, on the development set over steps", draw, legend=legend))
    return drawings


def make_label_curves(evaluations: Sequence[Evaluation], colors: Colors) -> list[tuple[Figure, Table]]:
    """Return the scores by number of labeled examples, for each task with models trained on samples of several sizes.

    Each task has a figure and a table.
    """
    labeled = sorted((e for e in evaluations if e.num_labeled), key=lambda e: e.control_rank)
    curves = []
    for identity in dict.fromkeys(e.task_identity for e in labeled):
        group = [e for e in labeled if e.task_identity == identity]
        # `sample_size` is 0 for a model trained on all examples.
        if any(e.sample_size for e in group) and len({e.num_labeled for e in group}) > 1:
            curves.append(_make_label_curve(group, colors))
    return curves


def _metric_title(name: str) -> str:
    return _METRIC_TITLES.get(name, name.replace("_", " "))


def _group_title(group: TaskGroup) -> str:
    return f"{group[0].record.title}, {_metric_title(group[0].record.metric)} × 100"


def _merge_baselines(group: TaskGroup) -> dict[str, float]:
    """Return the baselines of a task by title."""
    return {title: e.baselines[title] for title, e in _find_baselines(group).items()}


def _find_baselines(group: TaskGroup) -> dict[str, Evaluation]:
    """Return the evaluation with the most dev examples among those with a baseline, by the baseline's title."""
    evaluations: dict[str, Evaluation] = {}
    for e in sorted(group, key=lambda e: e.num_dev, reverse=True):
        for title in e.baselines:
            evaluations.setdefault(title, e)
    return evaluations


def _describe_single(evaluation: Evaluation) -> str:
    """Return the origin of an evaluation's only score: "selected on dev", "not trained" or "1 seed"."""
    if isinstance(evaluation.record, EnsembleResult):
        return "selected on dev"
    if isinstance(evaluation.record, ScoredResult):
        return "not trained"
    return "1 seed"


# ---------------------------------------------------------------- scores


def _make_task_table(groups: Sequence[TaskGroup], models: Sequence[str]) -> Table:
    """Return a table of scores with a row for each task, and a column for each model and each baseline."""
    baselines = list(dict.fromkeys(name for group in groups for name in _merge_baselines(group)))
    rows = []
    for group in groups:
        best = max(e.median for e in group)
        by_model = {e.model: _score_cell(e, best) for e in group}
        cells = [by_model.get(model, "–") for model in models]
        cells += [_baseline_cell(group, name) for name in baselines]
        rows.append([Cell(group[0].record.title, [_metric_title(group[0].record.metric)]), *cells])
    return Table(["task", *models, *baselines], rows)


def _score_cell(evaluation: Evaluation, best: float) -> Cell:
    """Return a median with notes on its seeds; `best` is the best median of the task."""
    record = evaluation.record
    scores = sorted(evaluation.scores.values())
    facts = [_describe_single(evaluation)]
    notes = []
    if len(scores) > 1:
        spread = format_percent(scores[-1] - scores[0])
        error = format_percent(standard_error(scores))
        facts = [f"{len(scores)} seeds", f"spread {spread}", f"s.e. {error}"]
        notes = [", ".join(map(format_percent, scores))]
    for name, other_median in tables.medians_on_other_splits(record).items():
        notes.append(f"{_metric_title(name)} {format_percent(other_median)}")
    if isinstance(record, EvaluationResult) and record.diverged:
        facts.append(f"{len(record.diverged)} diverged")
    if record.collapse_reasons:
        facts.append(f"{len(record.collapse_reasons)} collapsed")
    median = evaluation.median
    return Cell(format_percent(median), [", ".join(facts), *notes], is_best=median == best)


def _baseline_cell(group: TaskGroup, title: str) -> str | Cell:
    """Return a baseline's score, "–" if the task has none; a note names the linear model of the classical baseline."""
    evaluation = _find_baselines(group).get(title)
    if evaluation is None:
        return "–"
    notes = []
    if title == CLASSICAL_BASELINE and evaluation.record.best_baseline is not None:
        name, _ = evaluation.record.best_baseline
        notes = [name]
    return Cell(format_percent(evaluation.baselines[title]), notes)


def _make_score_figure(group: TaskGroup, colors: Colors) -> Figure:
    """Return a figure with a row for each model of a task, controls last, and for each baseline."""
    rows = []
    for e in group:
        seeds = sorted(e.scores, key=lambda seed: e.scores[seed])
        is_collapsed = [seed in e.record.collapse_reasons for seed in seeds]
        rows.append(DotRow(e.model, [e.scores[seed] for seed in seeds], e.median, colors[e.model], is_collapsed))
    rows += [DotRow(name, [score]) for name, score in _merge_baselines(group).items()]
    medians = ", ".join(f"{e.model}: median {format_percent(e.median)} of {len(e.scores)}" for e in group)
    title = _group_title(group)
    return Figure(title, f"{title}. {medians}", partial(figures.draw_dots, rows))


def _list_protocols(evaluations: Sequence[Evaluation], groups: Sequence[TaskGroup]) -> list[str]:
    """Return sentences on how the models were trained, in the order of the tables.

    Each sentence is about one model and one protocol, with all tasks on which the model has this protocol. Then follow
    notes on intermediate tasks that were left out.
    """
    order = [group[0].task_identity for group in groups]
    ordered = sorted(
        evaluations, key=lambda e: (order.index(e.task_identity), _smaller_samples_last(e), e.control_rank)
    )
    titles_by_protocol: dict[tuple[str, str], list[str]] = {}  # by model and protocol
    notes: list[str] = []
    for e in ordered:
        if isinstance(e.record, EvaluationResult | RunResult):
            titles_by_protocol.setdefault((e.model, tables.format_protocol(e.record)), []).append(e.record.title)
            if e.record.protocol.intermediate_note:
                notes.append(f"{e.record.title}: {e.record.protocol.intermediate_note}.")
    sentences = [
        f"{model} on {join_words(titles)}: {protocol}." for (model, protocol), titles in titles_by_protocol.items()
    ]
    return [*sentences, *dict.fromkeys(notes)]


def _make_published_table(groups: Sequence[TaskGroup]) -> Table | None:
    """Return the best median of each task next to published scores; None if no task has published scores.

    Published scores are of pretrained models on the development sets. So scores on a test set are left out, and a
    control's score is used only if the task has no other. A task whose published scores have several metrics, such as
    F1 and exact match, has all of them in its cells.
    """
    published = load_published_scores()  # scores times 100, by model, task and metric
    groups = [group for group in groups if not _is_on_test_set(group)]
    groups = [group for group in groups if any(group[0].record.task in scores for scores in published.values())]
    models = [model for model, scores in published.items() if any(group[0].record.task in scores for group in groups)]
    if not groups:
        return None
    rows = []
    for group in groups:
        # Published scores are those of single models, so an ensemble counts only if the task has no other score.
        single_models = [e for e in group if not isinstance(e.record, EnsembleResult)]
        best = max(_prefer_pretrained(single_models or group), key=lambda e: e.median)
        metrics = paper_metric_names(best.record.task)
        medians = best.record.medians
        if not set(metrics) <= set(medians):  # another program wrote this result, with other metrics
            metrics = [best.record.metric]
            medians = {best.record.metric: best.median}
        ours = _published_cell([format_percent(medians[metric]) for metric in metrics], is_best=True)
        cells = [
            _published_cell([f"{score:.1f}" for score in published[model].get(best.record.task, {}).values()])
            for model in models
        ]
        rows.append([Cell(best.record.title, [_metric_title(metrics[0])]), ours, *cells])
    return Table(["task", "here, best median", *models], rows)


def _published_cell(scores: Sequence[str], *, is_best: bool = False) -> str | Cell:
    """Return the first score with the scores of other metrics as notes; a dash if there are no scores.

    is_best: True for the column of our own scores, which is bold.
    """
    if not scores:
        return "–"
    return Cell(scores[0], scores[1:], is_best)


# ---------------------------------------------------------------- by number of labeled examples


def _make_label_curve(group: TaskGroup, colors: Colors) -> tuple[Figure, Table]:
    """Return a task's figure and table: a line and a row for each model or baseline, by number of labeled examples."""
    scores = _scores_by_count(group)
    trends = []
    descriptions = []
    best: dict[float, float] = {}  # the highest median, by number of labeled examples
    for name, by_count in scores.items():
        color = colors.get(name, figures.MUTED)  # baselines have no color of their own
        trends.append(TrendSeries(name, by_count, color, is_baseline=name not in colors))
        points = []
        for count, seed_scores in by_count.items():
            median = statistics.median(seed_scores)
            points.append(f"{format_percent(median)} with {count:,.0f}")
            best[count] = max(median, best.get(count, median))
        descriptions.append(f"{name}: {', '.join(points)}")
    title = _group_title(group)
    figure = Figure(
        title=title,
        description=f"{title}, by number of labeled examples. {'; '.join(descriptions)}",
        draw=partial(figures.draw_trends, trends),
    )
    counts = sorted(best)
    rows: list[list[str | Cell]] = []
    for name, by_count in scores.items():
        rows.append([name, *(_label_cell(by_count.get(count, []), best[count]) for count in counts)])
    return figure, Table(["labeled examples", *(f"{count:,.0f}" for count in counts)], rows)


def _scores_by_count(group: TaskGroup) -> dict[str, dict[float, list[float]]]:
    """Return the scores of the seeds by model or baseline, and by number of labeled examples in ascending order."""
    scores: dict[str, dict[float, list[float]]] = {}
    for e in group:
        scores.setdefault(e.model, {})[e.num_labeled] = sorted(e.scores.values())
    for count in sorted({e.num_labeled for e in group}):
        baselines = _merge_baselines([e for e in group if e.num_labeled == count])
        for title, score in baselines.items():
            scores.setdefault(title, {})[count] = [score]
    return {name: dict(sorted(by_count.items())) for name, by_count in scores.items()}


def _label_cell(scores: Sequence[float], best: float) -> str | Cell:
    """Return the median of the seeds' scores, with a note that lists the scores; a dash if there are none."""
    if not scores:
        return "–"
    median = statistics.median(scores)
    notes = []
    if len(scores) > 1:
        notes = [", ".join(map(format_percent, scores))]
    return Cell(format_percent(median), notes, is_best=median == best)
