"""`albert predict`: text in, one JSON line out for each, with what the checkpoint's head says of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Protocol

import torch

from albert_cli import console, store
from albert_cli.errors import CheckpointError, InputError
from albert_cli.evaluation.answer import SpanPredictor
from albert_cli.evaluation.inputs import Line, choice_example, chunks, read_chunks, text_example
from albert_cli.model import hub
from albert_cli.model.heads import SequenceClassifier
from albert_cli.tasks import choice
from albert_cli.tasks.encode import encode
from albert_cli.tasks.spec import Task
from albert_cli.tasks.squad import read_file
from albert_cli.tasks.task import ChoiceExample, Example
from albert_cli.training import choose, spans
from albert_cli.training.classify import predict_logits, prediction_lines
from albert_cli.training.device import choose_device


class Predictor(Protocol):
    """What a kind of head makes of lines; `truncated` counts those that were cut, at `limit` pieces."""

    truncated: int
    limit: int

    def example(self, line: Line) -> Any:
        """What a line says, as the task's kind has it; raises `InputError` naming file and line."""

    def lines(self, examples: Sequence[Any]) -> list[str]:
        """A JSON line for each example, in order."""


class _NoSource:
    """Predictions are made on lines, not on a task's own files."""

    def read(self, task: Task, split: str, data: str | None) -> list[Example]:
        raise InputError("a task checkpoint does not carry its data")


class ClassPredictor:
    """Classes with their probabilities, or values, of a text or two."""

    def __init__(self, found: hub.Checkpoint, device: torch.device) -> None:
        self.task, self.device, self.truncated = _task_of(found), device, 0
        self.model = SequenceClassifier(found.config, len(self.task.output_names))
        hub.load_into(self.model, found, ["classifier"])
        self.model.to(device).eval()
        self.vocabulary, self.limit = hub.vocabulary_of(found), limit_of(found)
        self.inputs = found.finetuned_for.inputs if found.finetuned_for else None

    def example(self, line: Line) -> Example:
        """A text, or two; the model's own number of them where it is known."""
        return text_example(line, self.inputs)

    def lines(self, examples: Sequence[Example]) -> list[str]:
        """`id`, `prediction`, and for classes `probabilities`."""
        features = encode(examples, self.vocabulary, self.limit)
        self.truncated += features.truncated
        logits = predict_logits(self.model, features, len(self.task.output_names), self.device)
        return prediction_lines(self.task, logits, examples)


class ChoicePredictor:
    """The place of the right option (A, B, …) with the probabilities of all; questions may have any number of them."""

    def __init__(self, found: hub.Checkpoint, device: torch.device) -> None:
        self.model, self.device, self.truncated = choose.load(found, 1).to(device).eval(), device, 0
        self.vocabulary, self.limit = hub.vocabulary_of(found), limit_of(found)

    def example(self, line: Line) -> ChoiceExample:
        """A question with its options."""
        example = choice_example(line)
        if len(example.options) > len(ascii_uppercase):
            raise InputError(f"{line.where}: {len(example.options)} choices; {len(ascii_uppercase)} have a letter")
        return example

    def lines(self, examples: Sequence[ChoiceExample]) -> list[str]:
        """`id`, `prediction` and `probabilities`, by letter."""
        found = []
        for count, group in groupby(examples, key=lambda example: len(example.options)):
            alike = list(group)
            features = choice.encode(alike, self.vocabulary, self.limit)
            self.truncated += features.truncated
            self.model.choices = count
            task = Task("predict", "predict", tuple(ascii_uppercase[:count]), (), 2, _NoSource(), "choice")
            logits = predict_logits(self.model, features, count, self.device)
            found += choose.prediction_lines(task, logits, alike)
        return found


# By the class that reads the head, without its prefix (`Albert`, `Bert`).
PREDICTORS: Mapping[str, Callable[[hub.Checkpoint, torch.device], Predictor]] = {
    "ForSequenceClassification": ClassPredictor,
    choose.ARCHITECTURE: ChoicePredictor,
    spans.LINEAR: SpanPredictor,
    spans.BEAM: SpanPredictor,
}


def predict(
    checkpoint: str, input_file: str, out: Path | None, device: str, on_bad_bytes: str = "refuse"
) -> dict[str, Any] | None:
    """Say of each line of a file (or stdin, `-`) what a task checkpoint makes of it: JSON lines to `out` or stdout.

    Texts are cut where the task's own were. Some lines are read at a time and grouped by length; of a pipe those that
    have come. Returns a summary when `out` is given. Raises `CheckpointError` for a checkpoint without a task's head,
    `InputError` naming file and line for a line that the task has no use for.
    """
    found = hub.read(hub.find(checkpoint))
    predictor = _predictor(found, choose_device(device))
    started, count = time.monotonic(), 0
    with ExitStack() as stack:
        stream = sys.stdout if out is None else stack.enter_context(store.text_writer(out))
        for examples in _examples(predictor, input_file, on_bad_bytes):
            stream.writelines(predictor.lines(examples))
            stream.flush()  # whoever reads them need not wait for more
            count += len(examples)
    if predictor.truncated:
        what = "questions" if isinstance(predictor, SpanPredictor) else "inputs"
        console.note(
            f"{predictor.truncated:,} of {count:,} {what} are longer than {predictor.limit} pieces; they were cut"
        )
    if out is None:
        return None
    seconds = time.monotonic() - started
    return {
        "out": str(out),
        "lines": count,
        "truncated": predictor.truncated,
        "seconds": round(seconds, 3),
        "lines_per_second": round(count / seconds, 1),
    }


def _examples(predictor: Predictor, input_file: str, on_bad_bytes: str) -> Iterator[Sequence[Any]]:
    """The examples of a file, a line each, some at a time; for questions also a file in SQuAD's own layout."""
    if isinstance(predictor, SpanPredictor) and input_file.endswith(".json"):
        return chunks(read_file(Path(input_file)))
    return read_chunks(input_file, on_bad_bytes, predictor.example)


def _predictor(found: hub.Checkpoint, device: torch.device) -> Predictor:
    # A file that does not say its class may have a classifier all the same.
    made = PREDICTORS.get(found.architecture or "") or (ClassPredictor if found.labels else None)
    if made is not None:
        return made(found, device)
    raise CheckpointError(
        f"{found.directory}: has no classifier", "fine-tune it first: albert finetune TASK --checkpoint …"
    )


def limit_of(found: hub.Checkpoint) -> int:
    """The longest input in pieces: what the task was fine-tuned on, or all of the model's positions."""
    positions, made_for = found.config.max_position_embeddings, found.finetuned_for
    return min(made_for.max_seq_length, positions) if made_for else positions


def _task_of(found: hub.Checkpoint) -> Task:
    """The task that a checkpoint's configuration describes: its labels, or a value."""
    is_value = found.values.get("problem_type") == "regression" or len(found.labels) == 1
    labels = () if is_value else found.labels
    return Task("predict", "predict", labels, (), 1, _NoSource(), "regression" if is_value else "classification")
