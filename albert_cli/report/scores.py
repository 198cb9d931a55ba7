"""The report's sections on tasks: a table beside the baselines, every seed as a dot, learning curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress

from albert_cli.evaluation import tables
from albert_cli.report import plots
from albert_cli.report.collect import CLASSICAL, Evaluation
from albert_cli.report.page import Block, Fact, Figure, Grid, Heading, Key, Paragraph, Span, Table, Text
from albert_cli.results import format_percent, join_words, standard_error
from albert_cli.tasks.registry import paper_metric_names

_METRICS = {
    "mcc": "Matthews correlation",
    "f1": "F1",
    "best_f1": "F1 at the best threshold",
    "macro_f1": "macro F1",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
}
Series = Mapping[str, int]  # the colour of a model
Group = Sequence[Evaluation]  # of one task


def models(evaluations: Group) -> list[str]:
    """Names of the models, controls last."""
    return list(dict.fromkeys(e.model for e in sorted(evaluations, key=lambda e: e.control)))


def by_task(evaluations: Group) -> list[Group]:
    """The evaluations of each task, controls last; of parts of its training examples only those of the largest."""
    groups: list[Group] = []
    for question in dict.fromkeys(e.question for e in evaluations):
        same = (e for e in evaluations if e.question == question)
        group = sorted(same, key=lambda e: (-(e.part or math.inf), e.control))
        groups.append([e for e in group if e.part == group[0].part])
    return groups


def facts(evaluations: Group, most: int) -> list[Fact]:
    """The best medians of up to `most` tasks beside the others, the widest lead first."""

    def gap(group: Group) -> float:
        below = [e.median for e in group if e.control] + list(_baselines(group).values())
        return max(e.median for e in group) - max(below, default=0.0)

    found = []
    for group in sorted(by_task(evaluations), key=gap, reverse=True)[:most]:
        best = max(group, key=lambda e: e.median)
        beside = {e.model: e.median for e in group if e is not best} | _baselines(group)
        protocol = f"median of {len(best.scores)}" if len(best.scores) > 1 else _single(best)
        shown = ", ".join(f"{name} {format_percent(value)}" for name, value in beside.items())
        found.append(
            Fact(f"{best.title}, {_metric(best.record.metric)}, {protocol}", format_percent(best.median), shown)
        )
    return found


def section(evaluations: Group, series: Series) -> list[Block]:
    """Tasks by models with the median and every seed, as a number and as a dot, and the protocol."""
    groups = by_task(evaluations)
    rings = " A ring is a seed that collapsed." if any(e.record.collapse_reasons for e in evaluations) else ""
    questions = [group[0].question for group in groups]
    everything = sorted(evaluations, key=lambda e: (questions.index(e.question), -(e.part or math.inf), e.control))
    return [
        _task_table(groups, models(evaluations)),
        *_published(groups),
        Paragraph(f"A dot is a seed, a bar the median, a diamond a baseline.{rings}", small=True),
        Grid([_dots(group, series) for group in groups]),
        *(Paragraph(protocol, small=True) for protocol in _protocols(everything)),
    ]


def learning(evaluations: Group, series: Series) -> list[Block]:
    """Development scores while fine-tuning; empty where no run kept them."""
    panels = []
    for group in by_task([e for e in evaluations if e.curves]):
        lines = [plots.Line(points, series[e.model], "thin") for e in group for points in e.curves]
        keys = [Key(e.model, series[e.model], "line") for e in group]
        drawing = plots.curves(lines, percent=True, describes=f"{_name(group)}, on the development set over steps")
        panels.append(Figure(drawing, _name(group), keys))
    text = "The score on the development set while fine-tuning, a line for each seed. The best point counts."
    return [Paragraph(text), Grid(panels)] if panels else []


def _metric(name: str) -> str:
    return _METRICS.get(name, name.replace("_", " "))


def _name(group: Group) -> str:
    return f"{group[0].title}, {_metric(group[0].record.metric)} × 100"


def _baselines(group: Group) -> dict[str, float]:
    return {name: value for e in group for name, value in e.baselines.items()}


# ---------------------------------------------------------------- tables


def _task_table(groups: Sequence[Group], columns: Sequence[str]) -> Table:
    baselines = list(dict.fromkeys(name for group in groups for name in _baselines(group)))
    rows: list[list[Text]] = []
    for group in groups:
        best, found, known = max(e.median for e in group), {e.model: e for e in group}, _baselines(group)
        row: list[Text] = [(group[0].title, Span(_metric(group[0].record.metric)))]
        row += [_score(found[model], best) if model in found else "–" for model in columns]
        for name in baselines:
            which = next((e.record.classical[0] for e in group if e.record.classical), "") if name == CLASSICAL else ""
            row.append((format_percent(known[name]), *([Span(which)] if which else [])) if name in known else "–")
        rows.append(row)
    caption = "Median over the seeds on the development set, times 100; s.e. is the standard error of their mean."
    return Table(["task", *columns, *baselines], rows, caption=caption)


def _score(evaluation: Evaluation, best: float) -> Text:
    record, n = evaluation.record, len(evaluation.scores)
    spread = max(evaluation.scores.values()) - min(evaluation.scores.values())
    beside = [
        f"{n} seeds",
        f"spread {format_percent(spread)}",
        f"s.e. {format_percent(standard_error(record.by_seed.values()))}",
    ]
    beside = beside if n > 1 else [_single(evaluation)]
    each = [Span(", ".join(map(format_percent, sorted(evaluation.scores.values()))))] if n > 1 else []
    for name, seeds in (("diverged", record.divergence_reasons), ("collapsed", record.collapse_reasons)):
        beside += [f"{len(seeds)} {name}"] if seeds else []
    look = "best" if evaluation.median == best else "score"
    return (Span(format_percent(evaluation.median), look), Span(", ".join(beside)), *each)


def _single(evaluation: Evaluation) -> str:
    if evaluation.is_ensemble:
        return "chosen on dev"
    return "as it is" if evaluation.record.weights == "task checkpoint" else "1 seed"


def _protocols(evaluations: Group) -> list[str]:
    """How the scores came about, a sentence for all results that share it, and where a start was left out."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for e in evaluations:
        with suppress(TypeError, IndexError, KeyError):  # of a result from elsewhere not everything is known
            if text := tables.protocol(e.record):
                by_text.setdefault((e.model, text), []).append(e.title)
    sentences = [f"{model} on {join_words(titles)}: {text}." for (model, text), titles in by_text.items()]
    notes = {e.title: e.record.intermediate_note for e in evaluations if e.record.intermediate_note}
    return [*sentences, *(f"{title}: {note}." for title, note in notes.items())]


def _dots(group: Group, series: Series) -> Figure:
    rows = []
    for e in group:
        seeds = sorted(e.scores, key=lambda seed: e.scores[seed])
        hollow = [seed in e.record.collapse_reasons for seed in seeds]
        rows.append(plots.Row(e.model, [e.scores[seed] for seed in seeds], e.median, series[e.model], hollow))
    rows += [plots.Row(name, [value], None) for name, value in _baselines(group).items()]
    words = ", ".join(f"{e.model}: median {format_percent(e.median)} of {len(e.scores)}" for e in group)
    return Figure(plots.dots(rows, describes=f"{_name(group)}. {words}"), _name(group))


# ---------------------------------------------------------------- published

# Scores on dev of ALBERT and what it is compared with, all of far larger training than one's own. ALBERT v1 and v2 are
# the rows of the README of google-research/albert. BERT-large, XLNet, RoBERTa and ALBERT-xxlarge at 1.5 M steps are of
# tables 9 and 10 of the paper (arXiv 1909.11942), BERT-large's RACE of table 2.
Published = dict[str, dict[str, float]]  # task -> metric -> score times 100, the metrics those of `published_metrics`


def row(tasks: Sequence[str], cells: Sequence[str]) -> Published:
    """Scores as a table prints them, of which SQuAD has two in a cell: `F1/EM`; none where it prints a dash."""
    return {
        task: dict(zip(paper_metric_names(task), map(float, cell.split("/")), strict=True))
        for task, cell in zip(tasks, cells, strict=True)
        if cell != "–"
    }


_GLUE = ("mnli", "qnli", "qqp", "rte", "sst2", "mrpc", "cola", "stsb", "squad1", "squad2", "race")
_FIVE = ("squad1", "squad2", "mnli", "sst2", "race")
PUBLISHED: dict[str, Published] = {
    model: row(tasks, cells.split())
    for tasks, model, cells in (
        (_GLUE, "BERT-large", "86.6 92.3 91.3 70.4 93.2 88.0 60.6 90.0 90.9/84.1 81.8/79.0 73.9"),
        (_GLUE, "XLNet-large", "89.8 93.9 91.8 83.8 95.6 89.2 63.6 91.8 94.5/89.0 88.8/86.1 –"),
        (_GLUE, "RoBERTa-large", "90.2 94.7 92.2 86.6 96.4 90.9 68.0 92.4 94.6/88.9 89.4/86.5 –"),
        (_FIVE, "ALBERT-base v1", "89.3/82.3 80.0/77.1 81.6 90.3 64.0"),
        (_FIVE, "ALBERT-base v2", "90.2/83.2 82.1/79.3 84.6 92.9 66.8"),
        (_FIVE, "ALBERT-large v2", "91.8/85.2 84.9/81.8 86.5 94.9 75.2"),
        (_FIVE, "ALBERT-xlarge v2", "92.9/86.4 87.9/84.1 87.9 95.4 80.7"),
        (_FIVE, "ALBERT-xxlarge v1", "94.8/89.3 90.2/87.4 90.8 96.9 86.5"),
        (_FIVE, "ALBERT-xxlarge v2", "94.6/89.1 89.8/86.9 90.6 96.8 86.8"),
        (_GLUE, "ALBERT-xxlarge, 1.5 M steps", "90.8 95.3 92.2 89.2 96.9 90.9 71.4 93.0 94.8/89.3 90.2/87.4 –"),
    )
}


def _published(groups: Sequence[Group]) -> list[Block]:
    """The best median here beside published scores; empty where no task has one."""
    groups = [group for group in groups if any(group[0].task in scores for scores in PUBLISHED.values())]
    columns = [model for model, scores in PUBLISHED.items() if any(group[0].task in scores for group in groups)]
    rows: list[list[Text]] = []
    for group in groups:
        # As published rows are single models, an ensemble stands here only where there is nothing else.
        best = max([e for e in group if not e.is_ensemble] or group, key=lambda e: e.median)
        names, found = paper_metric_names(best.task), best.record.medians
        if not set(names) <= set(found):  # a result from elsewhere
            names, found = [best.record.metric], {best.record.metric: best.median}
        first, *others = (format_percent(found[name]) for name in names)
        row: list[Text] = [(best.title, Span(_metric(names[0]))), (Span(first, "best"), *map(Span, others))]
        for model in columns:
            first, *others = [f"{value:.1f}" for value in PUBLISHED[model].get(best.task, {}).values()] or ["–"]
            row.append((first, *map(Span, others)))
        rows.append(row)
    text = (
        "Published scores on the development sets, times 100: models of 12 to 360 million parameters, pretrained on "
        "16 GB of text and more. They say what that scale brings, not what to expect of a smaller one. SQuAD: F1, "
        "with exact match beside it, of 2.0 at the threshold that is best on the development set."
    )
    table = Table(["task", "here, best median", *columns], rows)
    return [Heading("Beside published models, at another scale"), Paragraph(text, small=True), table] if rows else []


# ---------------------------------------------------------------- by the number of labelled examples


def by_labels(evaluations: Group, series: Series) -> list[Block]:
    """A drawing and a table for each task that was learnt from several numbers of examples; empty where none was."""
    known = sorted((e for e in evaluations if e.labelled), key=lambda e: e.control)
    groups = [[e for e in known if e.question == one] for one in dict.fromkeys(e.question for e in known)]
    groups = [g for g in groups if any(e.part for e in g) and len({e.labelled for e in g}) > 1]
    text = "A dot is a seed, each with its own part of the training examples; a line joins the medians."
    blocks = [block for group in groups for block in _of_counts(group, series)]
    return [*blocks, Paragraph(text, small=True)] if groups else []


def _of_counts(group: Group, series: Series) -> list[Block]:
    found: dict[str, dict[float, list[float]]] = {}  # every seed's score, by model and number of labelled examples
    for e in group:
        found.setdefault(e.model, {})[e.labelled] = sorted(e.scores.values())
    for e in group:
        for name, value in e.baselines.items():
            found.setdefault(name, {})[e.labelled] = [value]
    trends = [plots.Trend(name, scores, series.get(name), name == CLASSICAL) for name, scores in found.items()]
    medians = {name: {n: statistics.median(seeds) for n, seeds in sorted(of.items())} for name, of in found.items()}
    words = "; ".join(
        f"{name}: {', '.join(f'{format_percent(median)} with {n:,.0f}' for n, median in of.items())}"
        for name, of in medians.items()
    )
    described = f"{_name(group)}, by number of labelled examples. {words}"
    drawing = plots.trends(trends, describes=described, x_label="labelled examples")
    counts = sorted({n for of in found.values() for n in of})
    rows: list[list[Text]] = []
    for name, of in found.items():
        row: list[Text] = [name]
        for n in counts:
            best = max(of_model[n] for of_model in medians.values() if n in of_model)
            look, seeds = "best" if medians[name].get(n) == best else "score", of.get(n, [])
            beside = [Span(", ".join(map(format_percent, seeds)))] if len(seeds) > 1 else []
            row.append((Span(format_percent(medians[name][n]), look), *beside) if seeds else "–")
        rows.append(row)
    table = Table(["labelled examples", *(f"{n:,.0f}" for n in counts)], rows)
    return [Figure(drawing, _name(group)), table]
