from __future__ import annotations

from unicodedata import normalize

import pytest

from albert_cli.text import token_statistics
from albert_cli.text.unigram import prune_vocabulary
from albert_cli.text.vocabulary import Vocabulary

TEXT = ["the file is not there.", "a snow☃man ☃", "unquestionably 한국"]


def test_the_figures_are_those_of_the_definition(small_vocabulary: Vocabulary) -> None:
    v = small_vocabulary
    statistics = token_statistics.measure_tokens(v, TEXT)
    ids = [v.encode(text) for text in TEXT]
    pieces, words = sum(map(len, ids)), sum(len(text.split()) for text in TEXT)
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


def test_fewer_pieces_cut_text_finer(small_vocabulary: Vocabulary) -> None:
    pruned = token_statistics.measure_tokens(small_vocabulary, TEXT).pruned
    assert [rates.size for rates in pruned] == [2000, 1000, 500]
    tokens_per_word = [rates.pieces_per_word for rates in pruned]
    assert tokens_per_word == sorted(tokens_per_word)
    assert tokens_per_word[0] < tokens_per_word[2]


def test_a_cut_keeps_the_best_pieces_and_every_character(small_vocabulary: Vocabulary) -> None:
    v = small_vocabulary
    smaller = Vocabulary(prune_vocabulary(v.model, 500), v.cleaning)
    assert smaller.size == 500
    assert smaller.pieces == [piece for piece in v.pieces if piece in set(smaller.pieces)]
    assert smaller.first_ordinary_id == v.first_ordinary_id
    assert {p for p in v.pieces if len(p) == 1} <= set(smaller.pieces)
    scores = {p.piece: p.score for p in v.model.pieces if p.type == p.NORMAL and len(p.piece) > 1}
    kept = [score for piece, score in scores.items() if piece in smaller.pieces]
    assert sorted(kept) == sorted(scores.values())[-len(kept) :]
    single = Vocabulary(
        prune_vocabulary(v.model, 1), v.cleaning
    )  # less than what every text may need: special pieces, symbols and characters remain
    assert all(len(piece) == 1 for piece in single.pieces[v.first_ordinary_id :])
    text = "the file is not there."
    assert single.decode(single.encode(text)) == text


def test_composed_forms_are_counted(small_vocabulary: Vocabulary) -> None:
    """SentencePiece composes what NFKD took apart, so that a Korean syllable is one character."""
    decomposed = token_statistics.measure_tokens(small_vocabulary, [normalize("NFKD", "한국 각")])
    assert decomposed.distinct_characters == 3
    composed = token_statistics.measure_tokens(small_vocabulary, ["한국 각"])
    assert decomposed.bytes_per_piece == composed.bytes_per_piece


def test_nothing_to_measure_is_no_accident(small_vocabulary: Vocabulary) -> None:
    statistics = token_statistics.measure_tokens(small_vocabulary, [""])
    assert statistics.unknown_rate == 0
    assert (
        "on training text 1.000 tokens a word, 0.00 characters a token"
        in token_statistics.format_statistics(statistics, "training")[1]
    )


def test_what_is_shown_is_printable() -> None:
    assert token_statistics.replace_unprintable("a\x1b[2J \u202eb ç") == "a\ufffd[2J \ufffdb ç"
