"""Recall: a word that a long text says once, far beyond position 512, is asked at its end. Made of any text.

No published task: the text is any (Wikipedia, say), and only the one sentence says which of four words is the answer. A
model that sees the first 512 tokens can only guess; one that sees all has to find a sentence among some fifty. Which
text, place and answer an example has is a function of the split and its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from albert_cli.errors import InputError
from albert_cli.randomness import hash_to_unit_interval
from albert_cli.tasks.classification import Classification, TextExample
from albert_cli.tasks.made_of_text import sentences_by_document

ANSWERS: Final = ("silver", "summer", "winter", "yellow")  # one token each, in small vocabularies too
BEFORE: Final = (520, 590)  # words before the sentence, at least and at most: a word is a token or more
WORDS: Final = 620  # of an example, about
_SIZES: Final = {"train": 4000, "dev": 400}
_MOST_WORDS: Final = {"train": 600_000, "dev": 100_000}  # that are read


@dataclass(frozen=True)
class RecallText:
    """Examples made of the documents of a source of text, as `albert data` takes them; `docs:` without one."""

    def read(self, task: Classification, split: str, data: str | None) -> list[TextExample]:
        source = data or "docs:"
        sentences = _sentences(source, split)
        words = [len(sentence.split()) for sentence in sentences]
        last = len(sentences) - 1
        while last > 0 and sum(words[last:]) < WORDS:
            last -= 1
        if last <= 0:
            raise InputError(
                f"{source}: too little text for {split}", f"some thousand words and more, not {sum(words)}"
            )
        return [_example(sentences, words, last, f"{split}-{number}") for number in range(_SIZES[split])]


@lru_cache(maxsize=4)
def _sentences(source: str, split: str) -> list[str]:
    """The sentences of a split's documents, but those with an answer in them."""
    found: list[str] = []
    count = 0
    for sentences in sentences_by_document(source, split):
        for sentence in sentences:
            if not any(answer in sentence.lower() for answer in ANSWERS):
                found.append(sentence)
                count += sentence.count(" ") + 1
        if count > _MOST_WORDS[split]:
            break
    return found


def _example(sentences: Sequence[str], words: Sequence[int], last: int, name: str) -> TextExample:
    """The example of a name such as `dev-17`: sentences that follow one another, the fact among them, the question."""
    begin, place, label = (hash_to_unit_interval(f"{name} {what}") for what in ("begin", "place", "label"))
    at, count = int(begin * (last + 1)), 0
    before = BEFORE[0] + int(place * (BEFORE[1] - BEFORE[0]))
    answer = int(label * len(ANSWERS))
    fact = f"The key word is {ANSWERS[answer]}."
    chosen, is_told = [], False
    while count < WORDS and at < len(sentences):
        if count >= before and not is_told:
            chosen.append(fact)
            is_told = True
        chosen.append(sentences[at])
        count, at = count + words[at], at + 1
    chosen += [] if is_told else [fact]  # behind a very long sentence
    return TextExample(" ".join([*chosen, "What is the key word?"]), None, answer, name)


RECALL: Final = Classification(
    name="recall",
    title="Recall",
    labels=ANSWERS,
    metrics=("accuracy",),
    inputs=1,
    source=RecallText(),
    test_splits=(),
    is_made_of_text=True,
)
