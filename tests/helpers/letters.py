"""A tokenizer with one token per letter, so that a test can tell the letter from an id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Letters:
    """A tokenizer with one token per letter; "a" has the id 10. `seen` lists the texts that were encoded."""

    cls_id = 2
    sep_id = 3

    def __init__(self) -> None:
        self.seen: list[str] = []

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts of the letters a to z."""
        self.seen += texts
        return [[10 + ord(letter) - ord("a") for letter in text] for text in texts]


def letters() -> Any:
    """Return the tokenizer, typed so that it can be passed as a vocabulary."""
    return Letters()
