"""Read the predictions that fine-tuned models made on dev (`predictions.dev.jsonl`), a JSON line for each example.

Tasks write the lines (`Task.format_predictions`); the kind of a line's prediction follows from its keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Required

from pydantic import Field
from typing_extensions import TypedDict

from albert_cli import journal, store
from albert_cli.tasks.base import PREDICTIONS

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]

PredictionKind = Literal["span", "class", "classes", "entities", "value", "other"]


class PredictionLine(TypedDict, total=False):
    """A run's line about one example: its prediction, the label if known, and the example's texts."""

    id: Required[str]
    prediction: Required[str | Number | list[str] | list[dict[str, object]]]  # its type depends on its kind
    label: str | Number | list[str] | list[dict[str, object]]
    probabilities: dict[str, Number]  # by class
    probability: Number  # of the predicted span
    answers: list[str]  # the correct spans' texts
    f1: Number  # of the predicted span
    em: Number  # exact match of the predicted span, 0 or 1
    title: str
    text: str
    text_pair: str
    question: str
    choices: list[str]


def prediction_kind(line: PredictionLine) -> PredictionKind:
    """Return the kind of the line's prediction: an answer span, a class, several classes, entities, or a number."""
    prediction = line["prediction"]
    has_probabilities = "probabilities" in line
    if "answers" in line and "f1" in line:
        return "span"
    if isinstance(prediction, list):
        return "classes" if has_probabilities else "entities"
    if isinstance(prediction, float):
        return "value"
    return "class" if has_probabilities else "other"


def read_predictions(folder: Path) -> Sequence[PredictionLine]:
    """Read the predictions of one run; empty if it saved none.

    Raises `CheckpointError` if the manifest lists a file that is missing.
    """
    path = folder / PREDICTIONS
    if not store.is_listed(path):
        return []
    return journal.read_json_lines(path, PredictionLine)
