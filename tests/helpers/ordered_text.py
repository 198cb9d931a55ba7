"""Documents whose first sentence speaks of a castle and whose second speaks of the sea, so their order is visible."""

from __future__ import annotations

import random
from typing import Final

_WORDS: Final = ("house", "tree", "dog", "cat", "small", "big", "red", "blue", "walks", "runs", "sings", "sees")
_OF_FIRST: Final = ("king", "queen", "prince", "knight", "castle")
_OF_SECOND: Final = ("river", "lake", "sea", "boat", "fish")


def ordered_documents(count: int, seed: int = 0) -> str:
    """Return documents of two sentences of six to ten words, separated by blank lines."""
    rng = random.Random(seed)
    documents = []
    for _ in range(count):
        sentences = []
        for topic in (_OF_FIRST, _OF_SECOND):
            words = rng.choices(_WORDS, k=rng.randint(4, 8)) + rng.choices(topic, k=2)
            rng.shuffle(words)
            sentences.append(" ".join(words).capitalize() + ".")
        documents.append(" ".join(sentences))
    return "\n\n".join(documents)
