"""The report's section on what models get wrong: confusions, values, kinds of questions, examples with text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from albert_cli.evaluation import judged, plots, report_scores
from albert_cli.evaluation.judged import Group, Judged
from albert_cli.evaluation.page import Markup, figure, join, key, table, tag
from albert_cli.evaluation.results import Evaluation, number

_CLASSES = 12  # a larger table is no longer read as a picture; its largest entries are listed
_EXAMPLES = 8
_CHARACTERS = 400  # shown of a text
_TEXTS = ("title", "text", "text_pair", "question", "choices")


def section(evaluations: Sequence[Evaluation], series: Mapping[str, int]) -> Markup | None:
    """A part for each model on each task whose predictions are there; random weights only where they are alone."""
    parts = []
    for group in report_scores.by_task(evaluations):
        shown = [e for e in group if not e.control] or group
        parts += [part for e in shown if (part := _part(e, series[e.model], several=len(shown) > 1)) is not None]
    if not parts:
        return None
    said = (
        "On the development set, over all runs of a model together: a run that is right does not hide one that is not."
    )
    return join(tag("p", said), *parts)


def _part(evaluation: Evaluation, series: int, several: bool) -> Markup | None:
    found = judged.read(evaluation.folders)
    if not found:
        return None
    name = report_scores.task_name(evaluation)
    title = f"{name}, {evaluation.model}" if several else name
    drawings = [*_values(title, found, series), *_questions(title, found)]
    parts = [
        _confusions(found),
        tag("div", *drawings, class_="grid") if drawings else None,
        _worst(found, runs=len(evaluation.folders)),
    ]
    return tag("div", tag("h3", title), *(part for part in parts if part is not None), class_="errors")


# ---------------------------------------------------------------- confusions


def _confusions(found: Sequence[Judged]) -> Markup | None:
    labels, counts = judged.confusion(found)
    if not labels:
        return None
    totals = {gold: sum(n for (of, _), n in counts.items() if of == gold) for gold in labels}
    if len(labels) > _CLASSES:
        wrong = [(gold, said, n) for (gold, said), n in counts.most_common() if gold != said][:_CLASSES]
        rows: list[list[str]] = [[*pair, f"{n:,}", f"{100 * n / totals[pair[0]]:.1f}"] for *pair, n in wrong]
        said = f"The commonest confusions of {len(labels)} classes."
        shown = table(["is", "said to be", "times", "% of its class"], rows, text_columns=2)
    else:
        rows = [
            [gold, *(_share(counts[gold, said], totals[gold]) for said in labels), f"{totals[gold]:,}"]
            for gold in labels
        ]
        said = "Rows: what it is. Columns: per cent of the row that was said to be so."
        shown = table(["", *labels, "judgements"], rows)
    return join(tag("p", said, class_="small"), tag("div", shown, class_="compact confusions"))


def _share(count: int, total: int) -> Markup:
    share = count / total if total else 0.0
    return tag("span", f"{100 * share:.1f}", class_="share", style=f"--share:{share:.3f}")


# ---------------------------------------------------------------- drawings


def _values(title: str, found: Sequence[Judged], series: int) -> list[Markup]:
    points = judged.values(found)
    if not points:
        return []
    drawing = plots.scatter(points, series, describes=f"{title}: predicted over gold values")
    shown = f"{min(len(points), plots.POINTS):,} of {len(points):,} examples; the line is a perfect prediction."
    return [figure(drawing, shown, title="Said over what it is")]


def _questions(title: str, found: Sequence[Judged]) -> list[Markup]:
    by_length, by_word = judged.by_answer_length(found), judged.by_question_word(found)
    kinds = (("By words of the answer", by_length), ("By question word", by_word))
    return [_groups(f"{title}: {kind}", kind, groups) for kind, groups in kinds if groups]


def _groups(describes: str, title: str, groups: Sequence[Group]) -> Markup:
    labels = [f"{group.name}\n{group.size:,}" for group in groups]
    drawing = plots.bars(labels, [g.f1 for g in groups], [g.exact_match for g in groups], describes=describes)
    rows = [[g.name, f"{g.size:,}", f"{100 * g.f1:.1f}", f"{100 * g.exact_match:.1f}"] for g in groups]
    numbers = tag("details", tag("summary", "as numbers"), table(["", "questions", "F1", "exact match"], rows))
    keys = key("F1", 1), key("exact match", 2, "line")
    return figure(drawing, *keys, "Below a bar: its questions.", numbers, title=title)


# ---------------------------------------------------------------- examples


def _worst(found: Sequence[Judged], runs: int) -> Markup | None:
    rows = judged.worst(found, _EXAMPLES)
    if not rows:
        return None
    texts = [name for name in _TEXTS if any(j.example.get(name) for j in rows)] or ["id"]
    cells = [[*(_text(j.example.get(name)) for name in texts), _gold(j), _said(j, runs), _wrong(j)] for j in rows]
    headers = [*(name.replace("_", " ") for name in texts), "is", "said to be", _error_name(rows[0])]
    shown = table(headers, cells, text_columns=len(texts) + 2)
    summary = tag("summary", f"The {len(rows)} worst of {len(found):,} examples" if len(rows) > 1 else "The one error")
    return tag("details", summary, tag("div", shown, class_="prose"), open="")


def _text(value: object) -> str:
    text = " / ".join(map(str, value)) if isinstance(value, list) else str("" if value is None else value)
    return text if len(text) <= _CHARACTERS else text[: _CHARACTERS - 1] + "…"


def _gold(judged: Judged) -> str:
    answers = judged.example.get("answers")
    if isinstance(answers, list):
        return _text(list(dict.fromkeys(map(str, answers)))) or "no answer"
    gold = judged.example.get("label")
    return f"{gold:g}" if isinstance(gold, float) else _text(gold)


def _said(found: Judged, runs: int) -> str:
    values = [value for line in found.said if (value := number(line.get("prediction"))) is not None]
    if len(values) > 1:
        return f"{fmean(values):.2f} ({min(values):.2f} to {max(values):.2f})"
    times = found.predictions
    if len(times) == 1 and runs >= 1:
        return _text(next(iter(times))) or "no answer"
    return ", ".join(f"{_text(said) or 'no answer'} ({n} of {len(found.said)})" for said, n in times.most_common())


def _error_name(found: Judged) -> str:
    if "f1" in found.example:
        return "F1"
    return "its probability, %" if isinstance(found.example.get("label"), str) else "off by"


def _wrong(found: Judged) -> str:
    is_distance = _error_name(found) == "off by"
    return f"{found.error:.2f}" if is_distance else f"{100 * (1 - found.error):.1f}"
