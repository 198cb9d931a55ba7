"""Read the predictions that fine-tuned models made on dev (`predictions.dev.jsonl`)."""

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
    """A run's line about an example: its prediction, the label where known, and the texts."""

    id: Required[str]
    prediction: Required[str | Number | list[str] | list[dict[str, object]]]
    label: str | Number | list[str] | list[dict[str, object]]
    probabilities: dict[str, Number]  # by class
    probability: Number  # of the predicted span
    answers: list[str]
    f1: Number
    em: Number
    title: str
    text: str
    text_pair: str
    question: str
    choices: list[str]


def prediction_kind(line: PredictionLine) -> PredictionKind:
    """Return the kind of the line's prediction: an answer span, a class, several classes, entities, or a number."""
    prediction = line["prediction"]
    if "answers" in line and "f1" in line:
        return "span"
    if isinstance(prediction, list):
        return "classes" if "probabilities" in line else "entities"
    if "probabilities" in line and isinstance(prediction, str):
        return "class"
    return "value" if isinstance(prediction, float) else "other"


def read_predictions(folder: Path) -> Sequence[PredictionLine]:
    """Read the predictions of one run; empty if it saved none, an error if the manifest lists a missing file."""
    path = folder / PREDICTIONS
    return journal.read_json_lines(path, PredictionLine) if store.is_listed(path) else []
