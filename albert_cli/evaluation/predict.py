"""`albert predict`: text in, one JSON line out for each, with the label and its probabilities."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from albert_cli import store
from albert_cli.errors import CheckpointError, InputError
from albert_cli.model import hub
from albert_cli.model.heads import SequenceClassifier
from albert_cli.tasks.encode import encode
from albert_cli.tasks.spec import Task
from albert_cli.tasks.task import Example
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.classify import predict_logits, prediction_lines
from albert_cli.training.run import choose_device

_CHUNK = 1024  # lines held at a time; enough to group by length


class _NoSource:
    """Predictions are made on lines, not on a task's own files."""

    def read(self, task: Task, split: str, data: str | None) -> list[Example]:
        raise InputError("a task checkpoint does not carry its data")


def predict(
    checkpoint: str, input_file: str, out: Path | None, device: str, on_bad_bytes: str = "refuse"
) -> dict[str, Any] | None:
    """Label each line of a file (or stdin, `-`) and write JSON lines to `out`, or to stdout.

    A line is a text, or two texts with a tab between; of a `.jsonl` file each line is an object with `text`
    (or `text_a`) and perhaps `text_pair` (or `text_b`). Texts are cut where the task's own were. Returns a
    summary when `out` is given. Raises `InputError` for a single text where the task has pairs, and the reverse.
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
    vocabulary = Vocabulary.load(found.directory)
    made_for = found.finetuned_for
    inputs = made_for.inputs if made_for else None
    limit = found.config.max_position_embeddings
    limit = min(made_for.max_seq_length, limit) if made_for else limit
    started, count = time.monotonic(), 0
    with ExitStack() as stack:
        stream = sys.stdout if out is None else stack.enter_context(store.text_writer(out))
        for examples in _chunks(_read(input_file, on_bad_bytes, inputs)):
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


def _read(name: str, on_bad_bytes: str, inputs: int | None) -> Iterator[Example]:
    """The examples of a file or of stdin, a line each; empty lines are texts too, so that lines keep their count.

    `inputs` is the number of texts in each; None takes either.
    """
    errors = "replace" if on_bad_bytes == "replace" else "strict"
    with ExitStack() as stack:
        stream: IO[bytes]
        if name == "-":
            stream = sys.stdin.buffer
        else:
            try:
                stream = stack.enter_context(Path(name).open("rb"))
            except OSError as error:
                raise InputError(f"{name}: {error.strerror or error}") from None
        for number, raw in enumerate(stream, start=1):
            try:
                line = raw.decode("utf-8", errors).rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{name}:{number}: not valid UTF-8 at byte {error.start} of the line", "--on-bad-bytes replace"
                ) from None
            example = _example(line, name, number)
            if inputs is not None and inputs != (1 if example.text_b is None else 2):
                wanted = ("a single text", "two texts, with a tab or as text and text_pair")
                got = "one text" if inputs == 2 else "two texts"
                raise InputError(f"{name}:{number}: {got}, but the model was fine-tuned on {wanted[inputs - 1]}")
            yield example


def _example(line: str, name: str, number: int) -> Example:
    if not name.endswith(".jsonl"):
        text, tab, pair = line.partition("\t")
        return Example(text, pair if tab else None, None, str(number))
    try:
        value = json.loads(line)
        text, pair = value.get("text", value.get("text_a")), value.get("text_pair", value.get("text_b"))
    except (json.JSONDecodeError, AttributeError):
        raise InputError(f"{name}:{number}: not a JSON object") from None
    if not isinstance(text, str) or not isinstance(pair, str | None):
        raise InputError(f'{name}:{number}: needs a string "text"', 'each line: {"text": "…", "text_pair": "…"}')
    return Example(text, pair, None, str(value.get("id", number)))


def _chunks(examples: Iterator[Example]) -> Iterator[list[Example]]:
    chunk: list[Example] = []
    for example in examples:
        chunk.append(example)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
