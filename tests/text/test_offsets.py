"""Every piece knows its place in the text as written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from albert_cli.text.offsets import encode_with_places
from albert_cli.text.vocabulary import Vocabulary

# Letters that become several, vanish, compose, depend on their place, or bring spaces; and spaces of many kinds.
AWKWARD = "aB é\u0301ﬁ½´ﷺΣςσİ한\u1112\u1161\u11ab\u0301\u200b\u3000\u00a0\t\n\x1c\u2028🙂\ud800\udc00\U0001d165ßǅ｡ﾞ"
TEXTS = st.text(st.one_of(st.sampled_from(AWKWARD), st.characters()), max_size=30)


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary: Path) -> Vocabulary:
    return Vocabulary.load(tiny_vocabulary)


@given(TEXTS)
@example("zero\u200bwidth a\u200bb")
@example("▁a ▁")
def test_pieces_are_those_of_plain_encoding_in_order_and_in_the_text(vocabulary: Vocabulary, text: str) -> None:
    placed = encode_with_places([text], vocabulary)[0]
    assert placed.ids.tolist() == vocabulary.encode(text)
    assert (np.diff(placed.starts) >= 0).all()
    assert (np.diff(placed.ends) >= 0).all()
    assert all(0 <= a <= b <= len(text) for a, b in zip(placed.starts, placed.ends, strict=True))
    for index, a, b in zip(*placed, strict=True):
        if text.isascii() and text.isprintable() and index != vocabulary.unk_id:
            assert vocabulary.pieces[index].removeprefix("▁") == text[a:b].lower()


def test_ascii_pieces_spell_their_places(vocabulary: Vocabulary) -> None:
    text = "  Bade fi\tgolu,  Mane's 1990  "
    placed = encode_with_places([text], vocabulary)[0]
    spelt = [text[a:b].lower() for a, b in zip(placed.starts, placed.ends, strict=True)]
    assert "".join(spelt) == "badefigolu,mane's1990"
    for index, word in zip(placed.ids, spelt, strict=True):
        assert vocabulary.pieces[index].removeprefix("▁") == word or index == vocabulary.unk_id


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Luma \t fi", ["Luma", "fi"]),
        ("fie\u0301 \u0302 luma", ["fie\u0301", "luma"]),
        (" ﬁgo\u3000½ É", ["ﬁgo", "½", "É"]),
        ("\u0301 [MASK]fi", ["[MASK]fi"]),
    ],
)
def test_words_by_hand(vocabulary: Vocabulary, text: str, words: list[str]) -> None:
    """From a word's first token to its last: the word as it was written."""
    ids, starts, ends = (values.tolist() for values in encode_with_places([text], vocabulary)[0])
    begins = [i for i, index in enumerate(ids) if vocabulary.pieces[index].startswith("▁")]
    lasts = [following - 1 for following in begins[1:]] + [len(ids) - 1]
    assert [text[starts[a] : ends[b]] for a, b in zip(begins, lasts, strict=True)] == words


def test_where_another_program_cuts_differently_places_stay_in_order(
    vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Luma fi, golu Mane"
    cut_otherwise = [[vocabulary.pieces.index(piece) for piece in "▁luma▁fi▁go"]]
    monkeypatch.setattr(vocabulary, "encode_batch", lambda texts: cut_otherwise)
    ids, starts, ends = encode_with_places([text], vocabulary)[0]
    assert ids.tolist() == cut_otherwise[0]
    for places in (starts, ends):
        assert (np.diff(places) >= 0).all() and places.min() >= 0 and places.max() <= len(text)
    assert (starts <= ends).all()
