"""`albert predict`: lines of a file or of stdin in, a JSON line out for each. `albert encode` shares them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import torch

from albert_cli import console, store
from albert_cli.errors import InputError
from albert_cli.model import hub
from albert_cli.tasks.input_lines import InputLine
from albert_cli.tasks.registry import task_from_checkpoint
from albert_cli.text.lines import text_lines
from albert_cli.text.read_settings import OnBadBytes, ReadSettings
from albert_cli.text.source_parts import ReadCounter, SourcePart
from albert_cli.text.sources import TextSource
from albert_cli.training import capacity
from albert_cli.training.device import choose_device

T = TypeVar("T")
CHUNK_LINES = 1024  # lines held at a time; enough to group by length


class _LinesReadCounter(ReadCounter):
    """Lines that have been read from the disk or the pipe, given out or not."""

    lines = 0

    def add(self, data: bytes) -> None:
        self.lines += data.count(b"\n")


def read_chunks(name: str, on_bad_bytes: OnBadBytes, make: Callable[[InputLine], T]) -> Iterator[list[T]]:
    """What `make` makes of the lines of a file or of stdin (`-`), some at a time, which are then grouped by length.

    Of a pipe those that have come, so that it need not end first. Empty lines count too. Raises `InputError` naming
    file and line.
    """
    if name.endswith(".json"):
        raise InputError(f"{name}: is one JSON document, not a text a line", "a .jsonl file has an object a line")
    if name.lower().endswith((".csv", ".parquet")):
        hint = "write the texts to a .txt file, or as .jsonl, with the columns as fields"
        raise InputError(f"{name}: is a table, not a text a line", hint)
    part, come = SourcePart(TextSource(name, "stdin" if name == "-" else "text")), _LinesReadCounter()
    chunk = []
    for number, text in text_lines(part, ReadSettings(on_bad_bytes), come):
        chunk.append(make(InputLine(text, name, number)))
        if (
            len(chunk) == CHUNK_LINES or number >= come.lines
        ):  # the next line is still to be waited for, or there is none
            yield chunk
            chunk = []


def open_for_inference(checkpoint: str, device: str) -> tuple[hub.Checkpoint, torch.device]:
    """A checkpoint, and the device that is to answer by it; a warning where that may take more memory than is free."""
    found, target = hub.read_checkpoint(hub.find_checkpoint(checkpoint)), choose_device(device)
    capacity.warn_inference_memory(found.config, target)
    return found, target


def write_answers(
    groups: Iterable[Sequence[T]],
    answer: Callable[[Sequence[T]], tuple[Iterable[str], int, int]],
    out: Path | None,
    length: int,
    too_long: str,
) -> dict[str, Any]:
    """Write the lines that answer each group to `out` or stdout, as soon as they are known; how many, and how fast.

    With its lines `answer` says how many inputs were cut and the tokens of the longest, of `length` that there may be.
    """
    started, count, cut, longest = time.monotonic(), 0, 0, 0
    with ExitStack() as stack:
        stream = sys.stdout if out is None else stack.enter_context(store.open_text_writer(out))
        for group in groups:
            lines, more, most = answer(group)
            stream.writelines(map(console.escape_control_chars, lines) if out is None else lines)
            stream.flush()  # whoever reads them need not wait for more
            count, cut, longest = count + len(group), cut + more, max(longest, most)
    seconds = time.monotonic() - started
    if cut:
        console.info(f"{cut:,} of {count:,} {too_long}; they were cut")
    console.info(f"read: up to {longest:,} tokens at a time, of {length:,} that the model was made for")
    speed = {"lines": count, "seconds": round(seconds, 3), "lines_per_second": round(count / seconds, 1)}
    return {"out": str(out), **speed, "truncated": cut, "longest": longest}


def predict_file(
    checkpoint: str, input_file: str, out: Path | None, device: str, on_bad_bytes: OnBadBytes = "refuse"
) -> dict[str, Any]:
    """Predict each line of a file (or stdin, `-`) with a task checkpoint: JSON lines to `out` or stdout; a summary.

    Texts are cut where the task's own were. Some lines are read at a time and grouped by length; of a pipe those that
    have come. Raises `CheckpointError` for a checkpoint without a task's head, `InputError` naming file and line for a
    line that the task has no use for.
    """
    found, target = open_for_inference(checkpoint, device)
    task, vocabulary = task_from_checkpoint(found), hub.load_vocabulary(found)
    model = task.load(found).to(target).eval()
    length = found.config.max_position_embeddings
    length = min(length, found.finetuned_task.max_seq_length) if found.finetuned_task else length
    document = task.examples_of_document(Path(input_file)) if input_file.endswith(".json") else None

    def answer(examples: Sequence[Any]) -> tuple[list[str], int, int]:
        features = task.encode(examples, vocabulary, length)
        lines = task.format_predictions(examples, task.predict(model, features, target), scored=False)
        return lines, features.truncated, int(features.lengths.max(initial=0))

    if document is None:
        chunks = read_chunks(input_file, on_bad_bytes, task.example)
    else:
        chunks = (document[start : start + CHUNK_LINES] for start in range(0, len(document), CHUNK_LINES))
    groups = (part for chunk in chunks for part in task.split_encodable(chunk))
    return write_answers(groups, answer, out, length, task.too_long(length))
