"""Read the predictions that a fine-tuning run has made on dev: `predictions.dev.jsonl`, a JSON line for each example.

Tasks write the lines (`Task.format_predictions`). What a prediction is, such as a class or an answer span, follows from
the keys of its line (`prediction_kind`).
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

    id: Required[str]  # of the example
    prediction: Required[str | Number | list[str] | list[dict[str, object]]]  # its type depends on its kind
    label: str | Number | list[str] | list[dict[str, object]]  # of the type of the prediction
    probabilities: dict[str, Number]  # by class
    probability: Number  # of the predicted span
    answers: list[str]  # the texts of the correct spans
    f1: Number  # of the predicted span
    em: Number  # exact match of the predicted span, 0 or 1
    title: str
    text: str
    text_pair: str
    question: str
    choices: list[str]


def prediction_kind(line: PredictionLine) -> PredictionKind:
    """Return the kind of a line's prediction; "value" is a number, "other" a text without probabilities."""
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
    """Read the predictions of one run; empty if the run saved none.

    Raises `CheckpointError` if the manifest in `folder` lists the file, but the file is missing.
    """
    path = folder / PREDICTIONS
    if not store.exists_or_is_listed(path):
        return []
    return journal.read_json_lines(path, PredictionLine)
