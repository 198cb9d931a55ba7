"""Sample texts on which two tokenizers must give equal ids before one may replace the other.

`load_vocabulary` uses the texts to check a SentencePiece model with which it replaces a Unigram `tokenizer.json`.
`SentencePieceVocabulary` uses them to check the `tokenizer.json` that it saves next to its `spiece.model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from albert_cli.text.words import WORD_MARK

_RANDOM_TEXTS: Final = 300
_PIECES_PER_RANDOM_TEXT: Final = 12
# Texts with what tokenizers often treat differently: case, accents, quotation marks, digits with commas, white space,
# compatibility forms, composition, scripts without spaces, joiners, emoji.
_FIXED_TEXTS: Final = (
    "The QUICK brown fox; it's 2,011 or 1,234,567.89 — don't!",
    "``quoted'' and ''quoted`` and \"quoted\"",
    "Ça va? Ångström, Łódź, naïve, São Paulo, Dvořák, İstanbul, ışık, Straße, ΣΊΣΥΦΟΣ",
    "Cafe\u0301 A\u030a q\u0307\u0323 q\u0323\u0307 \u1e9b\u0323",
    "two  spaces\tand\u00a0others\u3000here \u200b zero width\ufeff",
    "ﬁne ﬂow ½ ² ㎏ ℡ ＡＢＣ１２３ ｶﾞ ～ ´ ﷺ",
    "Быстрая лиса, ёлка; Ελληνικά, άλφα",
    "我们在北京。2,011年,日本語のテキスト、カタカナ ガ",
    "한국어 문장입니다. \u1112\u1161\u11ab",
    "हिन्दी में लिखा, বাংলা, தமிழ்",
    "ภาษาไทยไม่มีช่องว่าง ພາສາລາວ",
    "العربيّة مكتوبة، فارسی می\u200cشود, עִבְרִית",
    "👍🏽 👩\u200d👩\u200d👧 🇩🇪 ♥ ™ … \u2013 £ €",
    "word_mark, snake_case",
    "a",
    "",
)


def sample_texts(text_pieces: Sequence[str]) -> list[str]:
    """Return fixed texts in many scripts, and random sequences of a vocabulary's pieces (with seed 0).

    text_pieces: the pieces by id, with the word mark; "" for tokens that are not text.
    """
    pieces = [piece for piece in text_pieces if piece]
    if not pieces:
        return list(_FIXED_TEXTS)
    piece_indices = np.random.default_rng(0).integers(0, len(pieces), (_RANDOM_TEXTS, _PIECES_PER_RANDOM_TEXT))
    random_texts = ["".join(pieces[index] for index in row).replace(WORD_MARK, " ") for row in piece_indices]
    return [*_FIXED_TEXTS, *random_texts]
