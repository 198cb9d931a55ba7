"""The vocabulary is trained on all text: long sentences are split, and only reserved characters are lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from albert_cli.text.clean import Cleaning, NormalForm
from albert_cli.text.unigram import _split_by_bytes
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.text_files import build_largest_vocabulary

KEEP_ALL = Cleaning(lowercase=False, strip_accents=False, normal_form="NFC")
LONG_LINES = {
    "thai": ["ประเทศ", "รัฐบาล", "โรงเรียน", "ตลาด", "น้ำ"],
    "chinese": ["今天", "天氣", "很好", "我們，", "去"],
    "khmer": ["ប្រទេស", "សាលា", "ទឹក", "ផ្សារ"],
    "english without stops": ["ship ", "harbour ", "town ", "sail "],
    "one word": ["donau", "dampf", "schiff", "fahrt"],
    "combining marks": ["e\u0301\u0302x", "o\u0308\u0301y"],
}


@pytest.mark.parametrize("words", LONG_LINES.values(), ids=LONG_LINES)
def test_build_uses_the_text_of_long_lines(tmp_path: Path, words: list[str]) -> None:
    generator = random.Random(1)
    lines = ["a short headline"] * 50 + ["".join(generator.choices(words, k=3000))]
    (tmp_path / "a.txt").write_text("\n\n".join(lines), encoding="utf-8")
    built = build_largest_vocabulary(tmp_path / "a.txt", tmp_path / "out", cleaning=KEEP_ALL)
    assert built.report.tokens.character_coverage == 1
    assert built.report.tokens.unknown_rate == 0
    assert built.report.sentences.training >= 50 + 1


def test_build_splits_what_becomes_long_by_normalization(tmp_path: Path) -> None:
    """Train on a sentence of 900 characters that SentencePiece's normalizer turns into 17,000."""
    (tmp_path / "a.txt").write_text("\n".join(["ﷺ" * 900, "ab c"] * 20), encoding="utf-8")
    built = build_largest_vocabulary(tmp_path / "a.txt", tmp_path / "out", cleaning=KEEP_ALL)
    assert built.report.tokens.character_coverage == 1
    assert built.report.tokens.unknown_rate == 0


def test_build_uses_lines_with_the_reserved_character(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The bar ▅ grows, ▅▅ and shrinks again.\n" * 200, encoding="utf-8")
    built = build_largest_vocabulary(tmp_path / "a.txt", tmp_path / "out")
    assert built.report.tokens.most_frequent_without_piece == ["▅"]
    assert 0.9 < built.report.tokens.character_coverage < 1
    vocabulary = Vocabulary.load(tmp_path / "out")
    assert vocabulary.unk_id not in vocabulary.encode("the bar grows and shrinks again.")


@given(st.text(st.sampled_from("a éß今🙂\u0301\u0302"), max_size=60), st.integers(8, 40))
@example("e" + "\u0301" * 20, 8)
def test_split_by_bytes_loses_nothing(text: str, max_bytes: int) -> None:
    parts = list(_split_by_bytes(text, max_bytes))
    assert "".join(parts) == text
    assert all(len(part.encode()) <= max_bytes for part in parts)


@pytest.mark.parametrize("form", ["NFC", "none", "NFKC", "NFKD"])
def test_build_knows_or_does_not_cover_each_character(tmp_path: Path, form: NormalForm) -> None:
    """Train on what SentencePiece encodes, also for characters newer than its tables, and count the same."""
    characters = ["～", "\U0001ccf0", "\U00010781", "\ua7f2", "㋿", "\u061c", "\u200e", "\ufeff"]
    lines = [f"9時{character}5時、東京から大阪まで。\n" for character in characters]
    (tmp_path / "a.txt").write_text("".join(lines) * 40, encoding="utf-8")
    cleaning = Cleaning(lowercase=False, strip_accents=False, normal_form=form)
    built = build_largest_vocabulary(tmp_path / "a.txt", tmp_path / "out", cleaning=cleaning)
    assert built.report.tokens.unknown_rate == 0
    assert built.report.tokens.character_coverage == 1
