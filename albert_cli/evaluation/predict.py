"""`albert predict`: lines of a file or of stdin in, a JSON line out for each. `albert encode` shares them."""

from __future__ import annotations

import sys
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from io import BufferedReader
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

from albert_cli import console, store
from albert_cli.errors import InputError
from albert_cli.model import hub
from albert_cli.tasks.rows import Line
from albert_cli.tasks.spec import task_of_checkpoint
from albert_cli.text.lines import refuse_utf16
from albert_cli.training import capacity
from albert_cli.training.device import choose_device

T = TypeVar("T")
_CHUNK = 1024  # lines held at a time; enough to group by length
_BLOCK = 2**20  # bytes read at a time; a pipe gives no more than it holds


def read_chunks(name: str, on_bad_bytes: str, make: Callable[[Line], T]) -> Iterator[list[T]]:
    """What `make` makes of the lines of a file or of stdin (`-`), some at a time, which are then grouped by length.

    Lines come without their ends; empty ones count too. Raises `InputError` naming file and line.
    """
    if name.endswith(".json"):
        raise InputError(f"{name}: is one JSON document, not a text a line", "a .jsonl file has an object a line")
    if name.lower().endswith((".csv", ".parquet")):
        hint = "write the texts to a .txt file, or as .jsonl, with the columns as fields"
        raise InputError(f"{name}: is a table, not a text a line", hint)
    errors = "replace" if on_bad_bytes == "replace" else "strict"
    with ExitStack() as stack:
        stream: BufferedReader
        if name == "-":
            stream = cast(BufferedReader, sys.stdin.buffer)
        else:
            try:
                stream = stack.enter_context(Path(name).open("rb"))
            except OSError as error:
                raise InputError(f"{name}: {error.strerror or error}", "--input names a file, or - for stdin") from None
        numbers = count(1)
        for group in _groups(stream):
            yield [make(_line(raw, name, number, errors)) for raw, number in zip(group, numbers, strict=False)]


def _line(raw: bytes, name: str, number: int, errors: str) -> Line:
    if number == 1:
        refuse_utf16(name, raw)
        raw = raw.removeprefix(BOM_UTF8)
    try:
        return Line(raw.decode("utf-8", errors).rstrip("\r\n"), name, number)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name}:{number}: not valid UTF-8 at byte {error.start} of the line", "--on-bad-bytes replace"
        ) from None


def _groups(stream: BufferedReader) -> Iterator[Sequence[bytes]]:
    """Lines, at most `_CHUNK` at a time: those that one read gives, so that a pipe need not end first."""
    rest = b""
    while block := stream.read1(_BLOCK):  # waits, but for no more than there is
        *lines, rest = (rest + block).split(b"\n")
        yield from chunks(lines)
    if rest:
        yield [rest]


def chunks(examples: Sequence[T]) -> Iterator[Sequence[T]]:
    """Examples that are all there, as many at a time."""
    return (examples[start : start + _CHUNK] for start in range(0, len(examples), _CHUNK))


def write_answers(
    groups: Iterable[Sequence[T]], answer: Callable[[Sequence[T]], Iterable[str]], out: Path | None
) -> dict[str, Any]:
    """Write the lines that answer each group to `out` or stdout, as soon as they are known; how many, and how fast."""
    started, count = time.monotonic(), 0
    with ExitStack() as stack:
        stream = sys.stdout if out is None else stack.enter_context(store.text_writer(out))
        for group in groups:
            stream.writelines(map(console.harmless_json, answer(group)) if out is None else answer(group))
            stream.flush()  # whoever reads them need not wait for more
            count += len(group)
    seconds = time.monotonic() - started
    return {"lines": count, "seconds": round(seconds, 3), "lines_per_second": round(count / seconds, 1)}


def predict(
    checkpoint: str, input_file: str, out: Path | None, device: str, on_bad_bytes: str = "refuse"
) -> dict[str, Any] | None:
    """Predict each line of a file (or stdin, `-`) with a task checkpoint: JSON lines to `out` or stdout.

    Texts are cut where the task's own were. Some lines are read at a time and grouped by length; of a pipe those that
    have come. Returns a summary when `out` is given. Raises `CheckpointError` for a checkpoint without a task's head,
    `InputError` naming file and line for a line that the task has no use for.
    """
    found, target = hub.read(hub.find(checkpoint)), choose_device(device)
    capacity.warn_of_answering(found.config, target)
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
