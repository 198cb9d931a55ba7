"""Texts on which two tokenizers are compared before one replaces the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from albert_cli.text.words import WORD_MARK

_PIECES_PER_TEXT: Final = 12
_RANDOM_TEXTS: Final = 300  # texts of random pieces, to compare two backends
# Normalizers and segmentations differ on: case, accents, quotation marks, digits with commas, white space,
# compatibility forms, composition, scripts without spaces, joiners, emoji.
_SAMPLE: Final = (
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
    """Return texts in many scripts and of random pieces, the same for the same vocabulary."""
    rng = np.random.default_rng(0)
    pieces = [piece for piece in text_pieces if piece]
    if not pieces:
        return list(_SAMPLE)
    sampled = rng.integers(0, len(pieces), (_RANDOM_TEXTS, _PIECES_PER_TEXT))
    random_texts = ["".join(pieces[index] for index in row).replace(WORD_MARK, " ") for row in sampled]
    return [*_SAMPLE, *random_texts]
