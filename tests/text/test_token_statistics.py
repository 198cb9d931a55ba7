from __future__ import annotations

from unicodedata import normalize

import pytest

from albert_cli.text import token_statistics
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary

TEXT = ["the file is not there.", "a snow☃man ☃", "unquestionably 한국"]


def test_measure_tokens_follows_the_definitions(small_vocabulary: SentencePieceVocabulary) -> None:
    v = small_vocabulary
    statistics = token_statistics.measure_tokens(v, TEXT)
    ids = [v.encode(text) for text in TEXT]
    pieces = sum(map(len, ids))
    words = sum(len(text.split()) for text in TEXT)
    assert statistics.measured_on == 3
    assert statistics.pieces_per_word == pytest.approx(pieces / words)
    assert statistics.bytes_per_piece == pytest.approx(sum(len(t.encode()) for t in TEXT) / pieces)
    assert statistics.unknown_rate == pytest.approx(sum(row.count(v.unk_id) for row in ids) / pieces)
    letters = "".join(TEXT).replace(" ", "")
    assert statistics.character_coverage == pytest.approx(1 - 4 / len(letters))
    assert statistics.most_frequent_without_piece == ["☃", "한", "국"]
    assert statistics.characters_without_piece == 3
    assert statistics.most_frequent_pieces[0] == "▁"
    assert len(statistics.longest_pieces[0]) == max(map(len, v.pieces))


def test_measure_tokens_pruned_needs_more_tokens(small_vocabulary: SentencePieceVocabulary) -> None:
    pruned = token_statistics.measure_tokens(small_vocabulary, TEXT).pruned
    assert [rates.size for rates in pruned] == [2000, 1000, 500]
    tokens_per_word = [rates.pieces_per_word for rates in pruned]
    assert tokens_per_word == sorted(tokens_per_word)
    assert tokens_per_word[0] < tokens_per_word[2]


def test_measure_tokens_counts_composed_characters(small_vocabulary: SentencePieceVocabulary) -> None:
    """Count a Korean syllable as one character: SentencePiece composes what NFKD has decomposed."""
    decomposed = token_statistics.measure_tokens(small_vocabulary, [normalize("NFKD", "한국 각")])
    assert decomposed.distinct_characters == 3
    composed = token_statistics.measure_tokens(small_vocabulary, ["한국 각"])
    assert decomposed.bytes_per_piece == composed.bytes_per_piece


def test_measure_tokens_of_empty_text(small_vocabulary: SentencePieceVocabulary) -> None:
    statistics = token_statistics.measure_tokens(small_vocabulary, [""])
    assert statistics.unknown_rate == 0
    assert (
        "on training text 1.000 tokens per word, 0.00 characters per token"
        in token_statistics.format_statistics(statistics, "training")[1]
    )


def test_replace_unprintable_replaces_controls() -> None:
    assert token_statistics.replace_unprintable("a\x1b[2J \u202eb ç") == "a\ufffd[2J \ufffdb ç"
