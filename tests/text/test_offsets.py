"""Every piece knows its place in the text as written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.offsets import clean_with_places, encode_with_places
from albert_cli.text.vocabulary import Vocabulary

CLEANINGS = [
    Cleaning(lowercase, strip_accents, form)
    for lowercase in (True, False)
    for strip_accents in (True, False)
    for form in ("NFKD", "NFKC", "NFC", "none")
]
# Letters that become several, vanish, compose, depend on their place, or bring spaces; and spaces of many kinds.
AWKWARD = "aB é\u0301ﬁ½´ﷺΣςσİ한\u1112\u1161\u11ab\u0301\u200b\u3000\u00a0\t\n\x1c\u2028🙂\ud800\udc00\U0001d165ßǅ｡ﾞ"
TEXTS = st.text(st.one_of(st.sampled_from(AWKWARD), st.characters()), max_size=30)


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary: Path) -> Vocabulary:
    return Vocabulary.load(tiny_vocabulary)


@given(TEXTS, st.sampled_from(CLEANINGS))
@example("a´ b", Cleaning())
@example("\u0301 a", Cleaning())
@example("ΟΔΟΣ", Cleaning())
def test_cleaning_with_places_makes_the_same_text(text: str, cleaning: Cleaning) -> None:
    placed = clean_with_places(text, cleaning)
    assert placed.text == clean(text, cleaning)
    assert len(placed.starts) == len(placed.ends) == len(placed.text)
    assert all(0 <= a <= b <= len(text) for a, b in zip(placed.starts, placed.ends, strict=True))
    assert placed.starts == sorted(placed.starts)
    assert placed.ends == sorted(placed.ends)


@given(TEXTS, st.sampled_from(CLEANINGS))
def test_a_cleaned_letter_is_the_cleaning_of_what_it_came_from(text: str, cleaning: Cleaning) -> None:
    placed = clean_with_places(text, cleaning)
    for letter, a, b in zip(*placed, strict=True):
        source = clean(text[a:b], cleaning)
        assert letter == " " or letter in source or letter == "ς"  # a final sigma is none on its own


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("Café x", [("c", "C"), ("a", "a"), ("f", "f"), ("e", "é"), (" ", " "), ("x", "x")]),
        ("Cafe\u0301", [("c", "C"), ("a", "a"), ("f", "f"), ("e", "e\u0301")]),
        ("ﬁ", [("f", "ﬁ"), ("i", "ﬁ")]),
        (" a \t b", [("a", "a"), (" ", " \t "), ("b", "b")]),
    ],
)
def test_places_by_hand(text: str, letters: list[tuple[str, str]]) -> None:
    placed = clean_with_places(text, Cleaning())
    assert [(c, text[a:b]) for c, a, b in zip(*placed, strict=True)] == letters


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


def test_both_ways_to_find_places_agree(vocabulary: Vocabulary, shared_data: Path) -> None:
    data = json.loads((shared_data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))["data"]
    texts = [p["context"] for article in data[:3] for p in article["paragraphs"]]
    for text, placed in zip(texts, encode_with_places(texts, vocabulary), strict=True):
        # By SentencePiece's own spans of the cleaned text, and the places of its characters.
        cleaned = clean_with_places(text, vocabulary.cleaning)
        expected = []
        for index, begin, end in vocabulary.spans_of_cleaned(cleaned.text):
            inner = cleaned.text[begin:end].lstrip(" ")
            first = end - len(inner)
            span = (cleaned.starts[first], cleaned.ends[end - 1]) if inner else None
            expected.append((index, span))
        found = [(i, (a, b) if a < b else None) for i, a, b in zip(*(x.tolist() for x in placed), strict=True)]
        assert found == expected
