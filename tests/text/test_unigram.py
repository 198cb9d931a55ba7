from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from albert_cli.text.build_vocabulary import VocabularySettings, build_vocabulary
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.unigram import prune_vocabulary
from tests.helpers.text_files import write_numbered_sentences
from tests.helpers.vocabularies import load_sentencepiece


def test_prune_keeps_best_pieces_and_every_character(small_vocabulary: SentencePieceVocabulary) -> None:
    v = small_vocabulary
    smaller = SentencePieceVocabulary(prune_vocabulary(v.proto, 500), v.cleaning)
    assert smaller.size == 500
    assert smaller.pieces == [piece for piece in v.pieces if piece in set(smaller.pieces)]
    assert smaller.first_ordinary_id == v.first_ordinary_id
    assert {p for p in v.pieces if len(p) == 1} <= set(smaller.pieces)
    scores = {p.piece: p.score for p in v.proto.pieces if p.type == p.NORMAL and len(p.piece) > 1}
    kept_scores = [score for piece, score in scores.items() if piece in smaller.pieces]
    assert sorted(kept_scores) == sorted(scores.values())[-len(kept_scores) :]
    # Even with size 1, special pieces, symbols and single characters remain, so text can still be encoded.
    single = SentencePieceVocabulary(prune_vocabulary(v.proto, 1), v.cleaning)
    assert all(len(piece) == 1 for piece in single.pieces[v.first_ordinary_id :])
    text = "the file is not there."
    assert single.decode(single.encode(text)) == text


def test_log_estimate_warns_and_names_a_sample_that_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from albert_cli.text import unigram

    monkeypatch.setattr(unigram, "memory_info", lambda: {"available": 1_000_000, "total": 2_000_000})
    unigram.log_training_estimate(sentences=1000, text_bytes=100_000)
    printed = capsys.readouterr().err
    assert "warning: only 0.0 GB of memory available" in printed
    # Training takes 23 times the size of the text, 2.3 MB, and 1 MB is available. With a reserve of a tenth,
    # 0.9 * 1 / 2.3 of the 1,000 sentences fit: 391.
    assert "--sample-size 391 would fit" in printed
    monkeypatch.setattr(unigram, "memory_info", dict)  # unknown
    unigram.log_training_estimate(1000, 100_000)
    assert "warning" not in capsys.readouterr().err


def test_train_rounds_scores(small_vocabulary: SentencePieceVocabulary) -> None:
    scores = np.array([p.score for p in small_vocabulary.proto.pieces])
    assert np.array_equal(scores * 1024, np.round(scores * 1024))
    assert np.abs(scores).max() > 5


def test_train_makes_no_piece_with_digit_and_comma(tmp_path: Path) -> None:
    build_vocabulary([str(write_numbered_sentences(tmp_path))], tmp_path / "out", VocabularySettings(120))
    v = load_sentencepiece(tmp_path / "out")
    assert not [piece for piece in v.pieces if re.search(r"\d,$", piece)]
    pieces = [v.pieces[i] for i in v.encode("In 1911, ships")]
    assert "," in pieces
    assert "".join(pieces) == "▁in▁1911,▁ships"
