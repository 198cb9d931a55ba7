"""Corrupted: is a sentence as it was written, or was one of its words moved, left out, replaced or added?

What a grammarian is asked of a sentence (CoLA), asked of any text, so that it needs no labels. Two neighbours that have
changed places are "bigram shift", a word that does not belong is "semantic odd man out" (Conneau et al., 2018, arXiv
1805.01070, §2). What becomes of a sentence is a function of its text; a foreign word is one of the split's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from albert_cli.errors import InputError
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.made_of_text import sentences_by_document

WORDS: Final = (5, 20)  # of a sentence, at least and at most
_KINDS: Final = ("swap", "move", "leave out", "replace", "add")
_MOST: Final = {"train": 120_000, "dev": 1000}  # sentences


@dataclass(frozen=True)
class CorruptedText:
    """The first sentences of some words of a source of text, as they are or corrupted; `docs:` without a source."""

    def read(self, task: Classification, split: str, data: str | None) -> list[TextExample]:
        """The examples of a split. Raises `InputError` for text of fewer than two such sentences."""
        source = data or "docs:"
        found: dict[str, list[str]] = {}  # by its text: one that several documents have comes once
        for sentences in sentences_by_document(source, split):
            cut = (sentence.split() for sentence in sentences)
            found |= {" ".join(words): words for words in cut if WORDS[0] <= len(words) <= WORDS[1]}
            if len(found) >= _MOST[split]:
                break
        if len(found) < 2:
            asked = f"it takes sentences of {WORDS[0]} to {WORDS[1]} words between blanks, of several documents"
            raise InputError(
                f"{source}: too little text for {split}", f"{asked}; in a .txt a blank line ends a document"
            )
        written = list(found.items())[: _MOST[split]]
        foreign = [word for _, words in written for word in words[:-1]]  # a full stop would give it away
        examples = []
        for number, (text, words) in enumerate(written):
            is_original = hash_to_unit_interval(f"original {text}") < 0.5  # not the number that drew the split
            shown = text if is_original else " ".join(_corrupt(words, foreign))
            examples.append(TextExample(shown, None, int(is_original), f"{split}-{number}"))
        return examples


def _corrupt(sentence: Sequence[str], foreign: Sequence[str]) -> list[str]:
    """The words of a sentence with one change; a word that is added or takes another's place is one of `foreign`."""

    text = " ".join(sentence)

    def draw(what: str, size: int) -> int:
        return int(hash_to_unit_interval(f"{text} {attempt} {what}") * size)

    *before, last = sentence  # the last, which has the full stop, stays where it is
    attempt = 0
    while True:  # until something has changed
        attempt += 1
        words = list(before)
        kind = _KINDS[draw("kind", len(_KINDS))]
        at = draw("place", len(words) - (kind == "swap"))
        word = foreign[draw("word", len(foreign))]
        if kind == "swap":
            words[at : at + 2] = words[at + 1], words[at]
        elif kind == "move":
            words.insert(draw("to", len(before)), words.pop(at))
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
    title="Corrupted sentences",
    labels=("corrupted", "original"),
    metrics=("accuracy",),
    inputs=1,
    source=CorruptedText(),
    test_splits=(),
    is_made_of_text=True,
)
