"""The report's section on what models get wrong: confusions, values, kinds of questions, examples with text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from albert_cli.report import plots, predictions
from albert_cli.report.collect import Evaluation
from albert_cli.report.page import Block, Details, Figure, Grid, Group, Heading, Key, Paragraph, Part, Span, Table, Text
from albert_cli.report.predictions import Predicted, PredictionLine
from albert_cli.report.scores import by_task

_CLASSES = 12  # a larger table is no longer read as a picture; its largest entries are listed
_EXAMPLES = 8
_CHARACTERS = 400  # shown of a text
_SHOWN_ERROR = {"span": "F1", "class": "its probability, %", "value": "off by", "other": "runs right, %"}
_TEXTS = ("title", "text", "text_pair", "question", "choices")


def section(evaluations: Sequence[Evaluation], series: Mapping[str, int]) -> list[Block]:
    """A part for each model on each task whose predictions are there; controls only where they are alone."""
    parts: list[Block] = []
    for group in by_task(evaluations):
        shown = [e for e in group if not e.control] or group
        for e in shown:
            if found := predictions.read(e.folders):
                title = f"{e.title}, {e.model}" if len(shown) > 1 else e.title
                figures = [*_values(title, found, series[e.model]), *_questions(title, found)]
                grid = [Grid(figures)] if figures else []
                blocks = [Heading(title), *_confusions(found), *grid, *_worst(found)]
                parts.append(Group("errors", blocks))
    text = "On the development set, over all runs of a model: one that is right does not hide one that is not."
    return [Paragraph(text), *parts] if parts else []


def _confusions(found: Sequence[Predicted]) -> list[Block]:
    labels, counts = predictions.confusion(found)
    if not labels:
        return []
    totals = {gold: sum(n for (of, _), n in counts.items() if of == gold) for gold in labels}
    rows: list[list[Text]] = []
    if len(labels) > _CLASSES:
        text, columns = f"The commonest confusions of {len(labels)} classes.", 2
        headers = ["is", "predicted", "times", "% of its class"]
        wrong = [(gold, predicted, n) for (gold, predicted), n in counts.most_common() if gold != predicted]
        for gold, predicted, n in wrong[:_CLASSES]:
            rows.append([gold, predicted, f"{n:,}", f"{100 * n / totals[gold]:.1f}"])
    else:
        text, columns = "Rows: what it is. Columns: per cent of the row that was predicted so.", 1
        headers = ["", *labels, "predictions"]
        for gold in labels:
            shares = [counts[gold, predicted] / max(totals[gold], 1) for predicted in labels]
            cells = [Span(f"{100 * share:.1f}", "share", share) for share in shares]
            rows.append([gold, *cells, f"{totals[gold]:,}"])
    return [Paragraph(text, small=True), Table(headers, rows, columns, look="compact confusions")]


def _values(title: str, found: Sequence[Predicted], series: int) -> list[Figure]:
    points = predictions.values(found)
    if not points:
        return []
    drawing = plots.scatter(points, series, describes=f"{title}: predicted over gold values")
    shown = f"{min(len(points), plots.POINTS):,} of {len(points):,} examples; the line is a perfect prediction."
    return [Figure(drawing, "Predicted over what it is", [shown])]


def _questions(title: str, found: Sequence[Predicted]) -> list[Figure]:
    figures = []
    for kind, groups in (
        ("By words of the answer", predictions.by_answer_length(found)),
        ("By question word", predictions.by_question_word(found)),
    ):
        if not groups:
            continue
        labels = [f"{group.name}\n{group.size:,}" for group in groups]
        scores = [g.f1 for g in groups], [g.exact_match for g in groups]
        drawing = plots.bars(labels, *scores, describes=f"{title}: {kind}")
        rows = [[g.name, f"{g.size:,}", f"{100 * g.f1:.1f}", f"{100 * g.exact_match:.1f}"] for g in groups]
        numbers = Table(["", "questions", "F1", "exact match"], rows)
        keys: list[Part] = [Key("F1", 1), Key("exact match", 2, "line"), "Below a bar: its questions."]
        figures.append(Figure(drawing, kind, keys, numbers))
    return figures


# ---------------------------------------------------------------- examples


def _worst(found: Sequence[Predicted]) -> list[Block]:
    rows = predictions.worst(found, _EXAMPLES)
    if not rows:
        return []
    texts = [name for name in _TEXTS if any(of.example.get(name) for of in rows)] or ["id"]
    shown = _SHOWN_ERROR[predictions.kind(rows[0].example)]
    cells = [
        [
            *(_text(of.example.get(name)) for name in texts),
            _gold(of.example),
            _predicted(of),
            f"{of.error:.2f}" if shown == "off by" else f"{100 * (1 - of.error):.1f}",
        ]
        for of in rows
    ]
    headers = [*(name.replace("_", " ") for name in texts), "is", "predicted", shown]
    summary = f"The {len(rows)} worst of {len(found):,} examples" if len(rows) > 1 else "The one error"
    return [Details(summary, [Table(headers, cells, len(texts) + 2, look="prose")], open=True)]


def _text(value: object) -> str:
    text = " / ".join(map(str, value)) if isinstance(value, list) else str("" if value is None else value)
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"


def _gold(line: PredictionLine) -> str:
    gold = line.get("label")
    if "answers" in line:
        return _text(list(dict.fromkeys(line["answers"]))) or "no answer"
    return f"{gold:g}" if isinstance(gold, float) else _text(gold)


def _predicted(found: Predicted) -> str:
    """What the runs predicted: the range of values, or each prediction with the number of runs that made it."""
    values = predictions.numbers(found)
    if len(values) > 1:
        return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"
    if values:
        return f"{values[0]:.2f}"
    times = Counter(_text(line["prediction"]) or "no answer" for line in found.lines)
    if len(times) == 1:
        return next(iter(times))
    return ", ".join(f"{prediction} ({n} of {len(found.lines)})" for prediction, n in times.most_common())
