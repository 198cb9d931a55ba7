"""Read inputs in the layout in which a task's data are published: SQuAD's JSON, RACE's passages, CoNLL's columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from albert_cli import console
from albert_cli.tasks.base import AnyTask
from albert_cli.tasks.choice import Choice
from albert_cli.tasks.conll import has_tagged_words
from albert_cli.tasks.delimited import format_suffix
from albert_cli.tasks.race import read_race_passages
from albert_cli.tasks.squad.data import read_squad_file
from albert_cli.tasks.squad.task import SpanAnswering
from albert_cli.tasks.token_classification import TokenClassification
from albert_cli.tasks.token_data import read_conll_words


def read_document(task: AnyTask, path: Path) -> Sequence[Any] | None:
    """Return the examples of a file or folder in the published layout of the task's data; None for another layout.

    The type of the task and the file ending decide. `InputReader` reads the other layouts: tables, JSON lines and plain
    text. Raises `InputError` for a damaged file.
    """
    suffix = path.suffix.lower()
    if isinstance(task, SpanAnswering) and suffix == ".json":
        return read_squad_file(path)
    if isinstance(task, Choice) and (path.is_dir() or suffix == ".txt"):
        return read_race_passages(path)
    if isinstance(task, TokenClassification) and _is_conll(path):
        examples, notes = read_conll_words(path)
        for note in notes:
            console.info(note)
        return examples
    return None


def _is_conll(path: Path) -> bool:
    """Return True if a file has CoNLL columns.

    Training reads them from every file that is no table of another format and no JSON. `predict` does so only if the
    ending is that of CoNLL columns, or if the words have tags: a .txt file without tags has a text per line, and a .tsv
    file without tags is a table.
    """
    suffix = format_suffix(path.name)
    is_other = suffix in (".csv", ".jsonl", ".json", ".parquet")
    return suffix in (".conll", ".bio", ".iob") or (not is_other and has_tagged_words(path))
