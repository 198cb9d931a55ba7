"""Corrupted: is a sentence as it was written, or was one of its words moved, left out, replaced or added?

What a grammarian is asked of a sentence (CoLA), asked of any text, so that it needs no labels: of a model of minutes
CoLA comes out better after it. Two neighbours that have changed places are "bigram shift", a word that does not belong
is "semantic odd man out" (Conneau et al., 2018, arXiv 1805.01070, §2). What becomes of a sentence is a function of the
split and its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from albert_cli.errors import InputError
from albert_cli.random import text_share
from albert_cli.tasks.classification import Classification, Example
from albert_cli.tasks.made import sentences_by_document

WORDS: Final = (5, 20)  # of a sentence, at least and at most
_KINDS: Final = ("swap", "move", "leave out", "replace", "add")
_MOST: Final = {"train": 120_000, "dev": 1000}  # sentences


@dataclass(frozen=True)
class CorruptedText:
    """Each sentence of a source of text once, as it is or corrupted; `docs:` without a source."""

    def read(self, task: Classification, split: str, data: str | None) -> list[Example]:
        source = data or "docs:"
        found: list[list[str]] = []
        for sentences in sentences_by_document(source, split):
            cut = (sentence.split() for sentence in sentences)
            found += [words for words in cut if WORDS[0] <= len(words) <= WORDS[1]]
            if len(found) >= _MOST[split]:
                break
        if len(found) < 2:
            length = f"{WORDS[0]} to {WORDS[1]} words between blanks, of several documents"
            raise InputError(f"{source}: too little text for {split}", f"it takes sentences of {length}")
        return [_example(found, number, split) for number in range(min(len(found), _MOST[split]))]


def _example(sentences: Sequence[list[str]], number: int, split: str) -> Example:
    name = f"{split}-{number}"
    is_original = text_share(name) < 0.5
    words = sentences[number] if is_original else _corrupt(sentences, number, name)
    return Example(" ".join(words), None, int(is_original), name)


def _corrupt(sentences: Sequence[list[str]], number: int, name: str) -> list[str]:
    """The words of a sentence with one corruption, drawn by `name`; a word to take its place is any of the text's."""

    def draw(what: str, size: int) -> int:
        return int(text_share(f"{name} {attempt} {what}") * size)

    *before, last = sentences[number]  # the last, which has the full stop, stays where it is
    attempt = 0
    while True:  # until something has changed
        attempt += 1
        words = list(before)
        kind = _KINDS[draw("kind", len(_KINDS))]
        at = draw("place", len(words) - (kind == "swap"))
        other = sentences[draw("sentence", len(sentences))]
        word = other[draw("word", len(other))]
        if kind == "swap":
            words[at : at + 2] = words[at + 1], words[at]
        elif kind == "move":
            word = words.pop(at)
            words.insert(draw("to", len(before)), word)
        elif kind == "leave out":
            del words[at]
        elif kind == "replace":
            words[at] = word
        else:
            words.insert(at, word)
        if words != before:
            return [*words, last]


CORRUPTED: Final = Classification(
    name="corrupted",
    title="Corrupted",
    labels=("corrupted", "original"),
    metrics=("accuracy",),
    inputs=1,
    source=CorruptedText(),
    test_splits=(),
    is_made_of_text=True,
)
