"""The most confident mistakes of fine-tuned models on dev, with their texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from albert_cli.report.collect import Evaluation
from albert_cli.report.entity_mistakes import (
    is_entity_line,
    measure_entity_error,
    tabulate_entity_errors,
    tabulate_entity_mistakes,
)
from albert_cli.report.predictions import PredictionLine, prediction_kind, read_predictions
from albert_cli.report.render import Table
from albert_cli.report.scores import group_by_task

_MAX_MISTAKES = 8
_MAX_CHARACTERS = 400
_TEXT_FIELDS = ("title", "text", "text_pair", "question", "choices")


@dataclass(frozen=True)
class ModelMistakes:
    """The worst mistakes of a model on a task; `by_type` counts those on named entities."""

    title: str
    num_examples: int
    table: Table
    by_type: Table | None = None


def list_mistakes(evaluations: Sequence[Evaluation]) -> list[ModelMistakes]:
    """Return the worst mistakes of each model by task. Controls are included only where there is no other model."""
    mistakes = []
    for group in group_by_task(evaluations):
        for evaluation in [e for e in group if not e.control] or group:
            examples = group_by_example([read_predictions(folder) for folder in evaluation.folders])
            if worst := find_worst(examples):
                title = f"{evaluation.title}, {evaluation.model}"
                mistakes.append(_describe_mistakes(title, examples, worst))
    return mistakes


def _describe_mistakes(
    title: str, examples: Sequence[Sequence[PredictionLine]], worst: Sequence[Sequence[PredictionLine]]
) -> ModelMistakes:
    if not is_entity_line(worst[0][0]):
        return ModelMistakes(title, len(examples), _make_table(worst))
    by_type = tabulate_entity_errors(line for lines in examples for line in lines)
    return ModelMistakes(title, len(examples), tabulate_entity_mistakes(worst), by_type)


def group_by_example(runs: Sequence[Sequence[PredictionLine]]) -> list[Sequence[PredictionLine]]:
    """Group the lines of all runs by example."""
    by_id: dict[str, list[PredictionLine]] = {}
    for line in (line for lines in runs for line in lines):
        by_id.setdefault(line["id"], []).append(line)
    return list(by_id.values())


def find_worst(examples: Sequence[Sequence[PredictionLine]]) -> list[Sequence[PredictionLine]]:
    """Return the examples with the largest mean error over runs; of equal errors the more confident ones first."""
    wrong = [lines for lines in examples if any(measure_error(line) is not None and _is_wrong(line) for line in lines)]
    return sorted(wrong, key=lambda lines: (_mean_error(lines), _mean_confidence(lines)), reverse=True)[:_MAX_MISTAKES]


def measure_error(line: PredictionLine) -> float | None:
    """Return the error of a prediction; None without a label.

    That is 1 − F1 of a span, of a text's entities or of its classes, 1 − the label's probability, or the distance of a
    number.
    """
    label = line.get("label")
    prediction = line["prediction"]
    if prediction_kind(line) == "span":
        return 1.0 - float(line["f1"])
    if is_entity_line(line):
        return measure_entity_error(line)
    if isinstance(label, list) and isinstance(prediction, list):
        total = len(label) + len(prediction)
        return 1 - 2 * sum(name in prediction for name in label) / total if total else 0.0
    if isinstance(label, str):
        return 1.0 - float(line.get("probabilities", {}).get(label, label == prediction))
    if isinstance(label, float) and isinstance(prediction, float):
        return abs(label - prediction)
    return None


def _is_wrong(line: PredictionLine) -> bool:
    if prediction_kind(line) == "span":
        return float(line["f1"]) < 1
    if isinstance(line["prediction"], list):
        return bool(measure_error(line))
    return line.get("label") != line["prediction"]


def _mean_error(lines: Sequence[PredictionLine]) -> float:
    errors = [measure_error(line) for line in lines]
    return fmean(error for error in errors if error is not None)


def _mean_confidence(lines: Sequence[PredictionLine]) -> float:
    return fmean(line.get("probability", 0.0) if line["prediction"] else 0.0 for line in lines)


def _make_table(examples: Sequence[Sequence[PredictionLine]]) -> Table:
    fields = [name for name in _TEXT_FIELDS if any(lines[0].get(name) for lines in examples)] or ["id"]
    headers = [*(name.replace("_", " ") for name in fields), "label", "predicted", "mean error"]
    rows = []
    for lines in examples:
        texts = [_format_text(lines[0].get(name)) for name in fields]
        label = _format_text(lines[0].get("answers", lines[0].get("label"))) or "no answer"
        rows.append([*texts, label, _format_predictions(lines), f"{_mean_error(lines):.2f}"])
    return Table(headers, rows)


def _format_text(value: object) -> str:
    if isinstance(value, list):
        value = " / ".join(dict.fromkeys(map(str, value)))
    text = f"{value:.2f}" if isinstance(value, float) else str(value or "")
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def _format_predictions(lines: Sequence[PredictionLine]) -> str:
    """Format each prediction with the number of runs that made it."""
    counts = Counter(_format_text(line["prediction"]) or "no answer" for line in lines)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{prediction} ({count} of {len(lines)})" for prediction, count in counts.most_common())
