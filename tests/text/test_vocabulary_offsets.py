"""Offsets: the characters of the text that each token comes from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from albert_cli.text.clean import clean
from albert_cli.text.vocabulary import TokenOffsets, Vocabulary

# Letters that become several, vanish, compose, depend on their position, or contain spaces; and spaces of many kinds.
AWKWARD = "aB é\u0301ﬁ½´ﷺΣςσİ한\u1112\u1161\u11ab\u0301\u200b\u3000\u00a0\t\n\x1c\u2028🙂\ud800\U0001d165ßǅ｡ﾞ"


TEXTS = st.text(st.one_of(st.sampled_from(AWKWARD), st.characters(max_codepoint=0x2FFF)), max_size=30)


@pytest.fixture(scope="module")
def vocabulary(tiny_vocabulary: Path) -> Vocabulary:
    return Vocabulary.load(tiny_vocabulary)


def encode(vocabulary: Vocabulary, text: str) -> TokenOffsets:
    (encoded,) = vocabulary.encode_with_offsets([text])
    return encoded


def token_texts(vocabulary: Vocabulary, text: str) -> list[str]:
    """Return the characters of each token of a text."""
    encoded = encode(vocabulary, text)
    return [text[start:end] for start, end in zip(encoded.starts, encoded.ends, strict=True)]


@given(TEXTS)
@example("zero\u200bwidth a\u200bb")
@example("▁a ▁")
@example("[MASK] <pad>")
@example("ﷺ")
def test_offsets_of_any_text_increase_with_equal_ids(vocabulary: Vocabulary, text: str) -> None:
    encoded = encode(vocabulary, text)
    assert encoded.ids.tolist() == vocabulary.encode(text)
    assert (np.diff(encoded.starts) >= 0).all()
    assert (np.diff(encoded.ends) >= 0).all()
    assert (encoded.starts >= 0).all() and (encoded.starts <= encoded.ends).all() and (encoded.ends <= len(text)).all()


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_offsets_of_ascii_text_spell_each_piece(vocabulary: Vocabulary, text: str) -> None:
    encoded = encode(vocabulary, text)
    for index, part in zip(encoded.ids, token_texts(vocabulary, text), strict=True):
        assert index == vocabulary.unk_id or vocabulary.pieces[index].removeprefix("▁") == part.lower()
        assert part == part.strip()
    assert "".join(token_texts(vocabulary, text)) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("Café x", ["C", "a", "f", "é", "x"]),
        ("Cafe\u0301", ["C", "a", "f", "e\u0301"]),  # a dropped mark belongs to its letter
        (" a \t b", ["a", "b"]),
        ("ba  de\n", ["b", "a", "d", "e"]),
    ],
)
def test_offsets_of_letters_by_hand(vocabulary: Vocabulary, text: str, letters: list[str]) -> None:
    joined = [part for part in token_texts(vocabulary, text) if part]
    assert "".join(joined) == "".join(letters)
    boundaries = np.cumsum([len(part) for part in joined]).tolist()
    assert set(boundaries) <= set(np.cumsum([len(letter) for letter in letters]).tolist())


def test_offsets_of_squad_contexts_spell_their_pieces(vocabulary: Vocabulary, shared_data: Path) -> None:
    articles = json.loads((shared_data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))["data"]
    contexts = [paragraph["context"] for article in articles[:3] for paragraph in article["paragraphs"]]
    cleaning = vocabulary.cleaning
    assert cleaning is not None
    for context, encoded in zip(contexts, vocabulary.encode_with_offsets(contexts), strict=True):
        assert encoded.ids.tolist() == vocabulary.encode(context)
        for index, start, end in zip(*encoded, strict=True):
            piece = vocabulary.pieces[index].removeprefix("▁")
            assert index == vocabulary.unk_id or clean(context[start:end], cleaning) == piece
