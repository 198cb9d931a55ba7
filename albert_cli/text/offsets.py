"""Where each token of a text lies in the text as it was written, through cleaning and SentencePiece.

`tokenizers` repeats both (see `tokenizer_json`) and keeps the place of every character while it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from unicodedata import combining

import numpy as np
from numpy.typing import NDArray

from albert_cli.text.clean import without_surrogates
from albert_cli.text.vocabulary import Vocabulary

Int32 = NDArray[np.int32]


class PlacedTokens(NamedTuple):
    """Token ids int32 [n] with their places in the original text, int32 [n]: `original[start:end]`, no outer spaces.

    Starts and ends never decrease. A token of nothing but a space is empty, before the character that follows.
    """

    ids: Int32
    starts: Int32
    ends: Int32


def encode_with_places(texts: Sequence[str], vocabulary: Vocabulary) -> list[PlacedTokens]:
    """The tokens of each text, as `Vocabulary.encode_batch` gives them, with their places in it."""
    size = np.array([len(piece) for piece in vocabulary.pieces])
    tokenizer, placed = vocabulary.tokenizer(special=False), []
    for text, ids in zip(map(without_surrogates, texts), vocabulary.encode_batch(texts), strict=True):
        found = tokenizer.encode(text, add_special_tokens=False)
        starts = [end - len(text[begin:end].lstrip()) for begin, end in found.offsets]
        ends = [_behind_marks(text, end) for _, end in found.offsets]
        if found.tokens[:1] == ["▁"]:  # `tokenizers` gives the word mark that it puts first the next character's place
            ends[0] = starts[0]
        # Where the two cut a text differently, which is rare, a place lies between those of the cuts beside it.
        cuts, own = (np.cumsum([0, *size[i]]) for i in (found.ids, ids))
        first = np.maximum.accumulate(np.interp(own[:-1], cuts, [*starts, len(text)]))
        last = np.maximum.accumulate(np.maximum(np.interp(own[1:], cuts, [0, *ends]), first))
        placed.append(PlacedTokens(*(np.array(values, np.int32) for values in (ids, first, last))))
    return placed


def _behind_marks(text: str, end: int) -> int:
    """Where a letter that ends there ends with the accents that cleaning has dropped."""
    while end < len(text) and combining(text[end]):
        end += 1
    return end
