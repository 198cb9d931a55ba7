"""The report's section on mistakes: the dev examples on which fine-tuned models err most, with their texts.

`list_mistakes` reads the predictions of the evaluations' runs, groups them by example, and returns tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from albert_cli.report.collect import Evaluation
from albert_cli.report.entity_mistakes import (
    is_entity_line,
    measure_entity_error,
    measure_set_error,
    tabulate_entity_errors,
    tabulate_entity_mistakes,
)
from albert_cli.report.render import Table
from albert_cli.report.scores import group_by_task
from albert_cli.tasks.predictions import PredictionLine, prediction_kind, read_predictions

_MAX_MISTAKES = 8  # of a model
_MAX_CHARACTERS = 400  # of a text
_TEXT_FIELDS = ("title", "text", "text_pair", "question", "choices")  # keys of a line, in the order of the columns

ExampleLines = Sequence[PredictionLine]  # the lines of all runs about one example; never empty


@dataclass(frozen=True)
class ModelMistakes:
    """The worst mistakes of a model on a task."""

    title: str
    num_examples: int  # in the dev set
    table: Table
    by_type: Table | None = None  # for named entities, the numbers of errors on all examples, by type of entity


def list_mistakes(evaluations: Sequence[Evaluation]) -> list[ModelMistakes]:
    """Return the worst mistakes of each model on each task; those of controls only if the task has no other model."""
    mistakes = []
    for group in group_by_task(evaluations):
        models = [evaluation for evaluation in group if evaluation.control_rank == 0]
        for evaluation in models or group:
            examples = group_by_example([read_predictions(folder) for folder in evaluation.folders])
            worst = find_worst(examples)
            if not worst:
                continue
            by_type = None
            if is_entity_line(worst[0][0]):  # all lines of a task have the same kind
                table = tabulate_entity_mistakes(worst)
                by_type = tabulate_entity_errors(line for lines in examples for line in lines)
            else:
                table = _tabulate_mistakes(worst)
            title = f"{evaluation.record.title}, {evaluation.model}"
            mistakes.append(ModelMistakes(title, len(examples), table, by_type))
    return mistakes


def group_by_example(runs: Sequence[Sequence[PredictionLine]]) -> list[ExampleLines]:
    """Group the lines of all runs by example."""
    lines_by_id: dict[str, list[PredictionLine]] = {}
    for run in runs:
        for line in run:
            lines_by_id.setdefault(line["id"], []).append(line)
    return list(lines_by_id.values())


def find_worst(examples: Sequence[ExampleLines]) -> list[ExampleLines]:
    """Return the `_MAX_MISTAKES` examples with the largest mean error over runs, the largest first.

    If answer spans have equal errors, those with the highest probability come first. Examples that every run predicts
    correctly, or that have no label, are no mistakes.
    """
    wrong = [lines for lines in examples if any(_is_mistake(line) for line in lines)]
    wrong.sort(key=lambda lines: (_mean_error(lines), _mean_span_probability(lines)), reverse=True)
    return wrong[:_MAX_MISTAKES]


def measure_error(line: PredictionLine) -> float | None:
    """Return the error of a prediction, 0 if it is perfect; None without a label.

    The error is 1 − F1 for a span, a text's entities or several classes, 1 − the label's probability for a class, and
    the absolute difference for a value.
    """
    label = line.get("label")
    prediction = line["prediction"]
    if prediction_kind(line) == "span":
        return 1.0 - float(line["f1"])
    if is_entity_line(line):
        return measure_entity_error(line)
    if isinstance(label, list) and isinstance(prediction, list):
        return measure_set_error(set(map(str, label)), set(map(str, prediction)))
    if isinstance(label, str):
        is_correct = float(label == prediction)  # 0 or 1, for a line without probabilities
        return 1.0 - line.get("probabilities", {}).get(label, is_correct)
    if isinstance(label, float) and isinstance(prediction, float):
        return abs(label - prediction)
    return None


def _is_mistake(line: PredictionLine) -> bool:
    """Return True if the line has a label and the prediction differs from it.

    For a span or a list this means an F1 below 1. The error of a class is no criterion, because it is above 0 for a
    correct class, too, unless its probability is 1.
    """
    error = measure_error(line)
    if error is None:
        return False
    if prediction_kind(line) == "span" or isinstance(line["prediction"], list):
        return error > 0
    return line.get("label") != line["prediction"]


def _mean_error(lines: ExampleLines) -> float:
    """Return the mean error of the runs; at least one line must have a label."""
    errors = [measure_error(line) for line in lines]
    return fmean(error for error in errors if error is not None)


def _mean_span_probability(lines: ExampleLines) -> float:
    """Return the mean probability of the predicted spans, with 0 for "no answer"; 0 for tasks without spans.

    For a class, the error itself contains the probability.
    """
    return fmean(line.get("probability", 0.0) if line["prediction"] else 0.0 for line in lines)


def _tabulate_mistakes(examples: Sequence[ExampleLines]) -> Table:
    """Return a row for each example: its texts, the label, the predictions of the runs, and their mean error."""
    fields = [name for name in _TEXT_FIELDS if any(lines[0].get(name) for lines in examples)]
    fields = fields or ["id"]  # a task whose lines have no texts
    headers = [*(name.replace("_", " ") for name in fields), "label", "predicted", "mean error"]
    rows = []
    for lines in examples:
        first = lines[0]  # the texts and the label are the same in all runs
        texts = [_format_text(first.get(name)) for name in fields]
        label = _format_text(first.get("answers", first.get("label"))) or _empty_title(first)
        error_format = ".4g" if prediction_kind(first) == "value" else ".2f"  # values may have any size
        rows.append([*texts, label, _format_predictions(lines), f"{_mean_error(lines):{error_format}}"])
    return Table(headers, rows)


def _format_text(value: object) -> str:
    """Format a value of a line, shortened to `_MAX_CHARACTERS`; an empty string for None."""
    if value is None:
        text = ""
    elif isinstance(value, list):
        text = " / ".join(dict.fromkeys(map(str, value)))
    elif isinstance(value, float):
        text = f"{value:.7g}"  # as in `round_prediction`
    else:
        text = str(value)
    if len(text) <= _MAX_CHARACTERS:
        return text
    return text[: _MAX_CHARACTERS - 1] + "…"


def _empty_title(line: PredictionLine) -> str:
    """Return the words for an empty label or prediction."""
    titles = {"span": "no answer", "entities": "no entity"}
    return titles.get(prediction_kind(line), "no class")


def _format_predictions(lines: ExampleLines) -> str:
    """Format the prediction of all runs, or each of several predictions with the number of its runs."""
    counts = Counter(_format_text(line["prediction"]) or _empty_title(line) for line in lines)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{prediction} ({count} of {len(lines)})" for prediction, count in counts.most_common())
