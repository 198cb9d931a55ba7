"""`albert predict`: text in, one JSON line out for each, with the prediction of a task checkpoint."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from albert_cli import console, store
from albert_cli.evaluation.inputs import chunks, read_chunks
from albert_cli.model import hub
from albert_cli.tasks.spec import task_of_checkpoint
from albert_cli.training.device import choose_device


def predict(
    checkpoint: str, input_file: str, out: Path | None, device: str, on_bad_bytes: str = "refuse"
) -> dict[str, Any] | None:
    """Predict each line of a file (or stdin, `-`) with a task checkpoint: JSON lines to `out` or stdout.

    Texts are cut where the task's own were. Some lines are read at a time and grouped by length; of a pipe those that
    have come. Returns a summary when `out` is given. Raises `CheckpointError` for a checkpoint without a task's head,
    `InputError` naming file and line for a line that the task has no use for.
    """
    found, target = hub.read(hub.find(checkpoint)), choose_device(device)
    task, vocabulary = task_of_checkpoint(found), hub.vocabulary_of(found)
    model = task.load(found).to(target).eval()
    length = found.config.max_position_embeddings
    length = min(length, found.finetuned_for.max_seq_length) if found.finetuned_for else length
    document = task.examples_of_document(Path(input_file)) if input_file.endswith(".json") else None
    groups = read_chunks(input_file, on_bad_bytes, task.example) if document is None else chunks(document)
    started, count, cut, longest = time.monotonic(), 0, 0, 0
    with ExitStack() as stack:
        stream = sys.stdout if out is None else stack.enter_context(store.text_writer(out))
        for examples in groups:
            lines, more, most = task.answer(model, examples, vocabulary, length, target)
            stream.writelines(lines)
            stream.flush()  # whoever reads them need not wait for more
            count, cut, longest = count + len(lines), cut + more, max(longest, most)
    if cut:
        limit = task.limit(length)
        console.note(f"{cut:,} of {count:,} {task.noun} are longer than {limit} tokens; they were cut")
    if out is None:
        return None
    console.note(f"read: up to {longest:,} tokens at a time, of {length:,} that the model was made for")
    seconds = time.monotonic() - started
    return {
        "out": str(out),
        "lines": count,
        "truncated": cut,
        "longest": longest,
        "seconds": round(seconds, 3),
        "lines_per_second": round(count / seconds, 1),
    }
