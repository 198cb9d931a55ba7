"""What the tasks that are made of any text read: the sentences of a split's documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from albert_cli.errors import InputError
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.text.corpus import read_documents
from albert_cli.text.sentences import split_sentences

_DEV_SHARE: Final = 0.15  # of the documents


def sentences_by_document(source: str, split: str) -> Iterator[list[str]]:
    """The sentences of each document of a split (`train`, `dev`) of a source of text as `albert data` takes it.

    Documents come in the source's order; which split one belongs to is a function of its text. Raises `InputError`
    for standard input, which cannot be read once for each split, and for what `read_documents` cannot read.
    """
    if source == "-":
        raise InputError("-: a task reads its text once for each split", "write it to a file first")
    for document in read_documents([source]):
        if (hash_to_unit_interval(document.text) < _DEV_SHARE) == (split == "dev"):
            yield split_sentences(document.text)
