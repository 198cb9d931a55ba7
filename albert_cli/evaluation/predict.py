"""`albert predict`: text in, one JSON line out for each, with the prediction of a task checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albert_cli import console
from albert_cli.evaluation.inputs import chunks, read_chunks, write_answers
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
    cut, longest = 0, 0

    def answer(examples: Sequence[Any]) -> Sequence[str]:
        nonlocal cut, longest
        lines, more, most = task.answer(model, examples, vocabulary, length, target)
        cut, longest = cut + more, max(longest, most)
        return lines

    summary = write_answers(groups, answer, out)
    if cut:
        limit = task.limit(length)
        console.note(f"{cut:,} of {summary['lines']:,} {task.noun} are longer than {limit} tokens; they were cut")
    console.note(f"read: up to {longest:,} tokens at a time, of {length:,} that the model was made for")
    if out is None:
        return None
    return {"out": str(out), **summary, "truncated": cut, "longest": longest}
