"""`albert predict`: text in, one JSON line out for each, with the label and its probabilities."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from albert_cli import store
from albert_cli.errors import CheckpointError, InputError
from albert_cli.evaluation.inputs import chunks, read_examples
from albert_cli.model import hub
from albert_cli.model.heads import SequenceClassifier
from albert_cli.tasks.encode import encode
from albert_cli.tasks.spec import Task
from albert_cli.tasks.task import Example
from albert_cli.training.classify import predict_logits, prediction_lines
from albert_cli.training.device import choose_device


class _NoSource:
    """Predictions are made on lines, not on a task's own files."""

    def read(self, task: Task, split: str, data: str | None) -> list[Example]:
        raise InputError("a task checkpoint does not carry its data")


def predict(
    checkpoint: str, input_file: str, out: Path | None, device: str, on_bad_bytes: str = "refuse"
) -> dict[str, Any] | None:
    """Label each line of a file (or stdin, `-`) and write JSON lines to `out`, or to stdout.

    Lines are those of `read_examples`; texts are cut where the task's own were. Returns a summary when `out` is
    given. Raises `InputError` for a single text where the task has pairs, and the reverse.
    """
    found = hub.read(hub.find(checkpoint))
    if not found.labels:
        raise CheckpointError(
            f"{found.directory}: has no classifier", "fine-tune it first: albert finetune TASK --checkpoint …"
        )
    target = choose_device(device)
    task = _task_of(found)
    model = SequenceClassifier(found.config, len(task.output_names))
    hub.load_into(model, found, ["classifier"])
    model.to(target).eval()
    vocabulary = hub.vocabulary_of(found)
    made_for = found.finetuned_for
    inputs = made_for.inputs if made_for else None
    limit = found.config.max_position_embeddings
    limit = min(made_for.max_seq_length, limit) if made_for else limit
    started, count = time.monotonic(), 0
    with ExitStack() as stack:
        stream = sys.stdout if out is None else stack.enter_context(store.text_writer(out))
        for examples in chunks(read_examples(input_file, on_bad_bytes, inputs)):
            features = encode(examples, vocabulary, limit)
            stream.writelines(prediction_lines(task, predict_logits(model, features, target), examples))
            count += len(examples)
    if out is None:
        return None
    seconds = time.monotonic() - started
    return {
        "out": str(out),
        "lines": count,
        "seconds": round(seconds, 3),
        "lines_per_second": round(count / seconds, 1),
    }


def _task_of(found: hub.Checkpoint) -> Task:
    """The task that a checkpoint's configuration describes: its labels, or a value."""
    is_value = found.values.get("problem_type") == "regression" or len(found.labels) == 1
    labels = () if is_value else found.labels
    return Task("predict", "predict", labels, (), 1, _NoSource(), "regression" if is_value else "classification")
