from __future__ import annotations

import re
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from albert_cli.text.build_vocabulary import VocabularySettings, build_vocabulary
from albert_cli.text.clean import Cleaning
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.unigram import USER_DEFINED_SYMBOLS
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.text.words import find_word_boundaries, is_unspaced, word_pattern
from tests.helpers.languages import sentences

VOCABULARY_SIZES = {"german": 100, "russian": 70, "hindi": 76, "korean": 104, "turkish": 85, "greek": 80}


def find_starts(*pieces: str) -> list[bool]:
    """Return the flags of the word starts in a text that consists of these pieces."""
    boundaries = find_word_boundaries(pieces, "script")
    return [bool(is_start) for is_start in boundaries.find_starts(np.arange(len(pieces)))]


def test_reference_rule_follows_the_released_generator(small_vocabulary: SentencePieceVocabulary) -> None:
    starts = small_vocabulary.word_boundaries("reference").starts
    pieces = small_vocabulary.pieces
    assert starts.dtype == np.bool_
    assert starts.shape == (small_vocabulary.size,)
    for index, piece in enumerate(pieces):
        is_special = index < small_vocabulary.first_ordinary_id
        if is_special or piece.startswith("▁") or any(character.isdigit() for character in piece):
            assert starts[index], piece
        elif re.fullmatch("[a-z]+", piece):
            assert not starts[index], piece
    assert starts[[pieces.index(symbol) for symbol in (*USER_DEFINED_SYMBOLS, ",")]].all()
    ids = small_vocabulary.encode("unquestionably")
    assert starts[ids].tolist() == [True] + [False] * (len(ids) - 1)


@pytest.mark.parametrize("language", VOCABULARY_SIZES)
def test_script_rule_starts_words_only_after_spaces(language: str, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(sentences(language)[::3]), encoding="utf-8")
    cleaning = Cleaning(strip_accents=False, normal_form="NFKC")
    build_vocabulary(
        [str(text)], tmp_path / "vocabulary", VocabularySettings(size=VOCABULARY_SIZES[language], cleaning=cleaning)
    )
    vocabulary = Vocabulary.load(tmp_path / "vocabulary")
    for sentence in sentences(language)[::50]:
        ids = np.array(vocabulary.encode(sentence))
        is_start = vocabulary.word_boundaries().find_starts(ids)
        words = [vocabulary.decode(word.tolist()) for word in np.split(ids, np.flatnonzero(is_start)[1:])]
        assert "".join(words) == "".join(vocabulary.decode(ids).split())
        assert len(words) == len(sentence.split())


def test_script_rule_punctuation_and_digits_belong_to_the_word() -> None:
    starts = find_starts("▁der", "▁3", ",", "5", "▁l", "'", "été", ".", "▁«", "да", "»")
    assert np.flatnonzero(starts).tolist() == [0, 1, 4, 8]


def test_script_rule_unknown_token_continues_the_word() -> None:
    boundaries = find_word_boundaries(["", "▁сло", "во"], "script")
    assert boundaries.find_starts(np.array([1, 0, 2])).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("pieces", "starts"),
    [
        (("▁我", "爱", "P", "ython", "编程"), (True, True, True, False, True)),
        (("▁", "先生", "は", "。"), (True, True, True, True)),
        (("▁花了", "1", ",", "500", "元"), (True, True, False, False, True)),
        (("▁ภาษา", "ไทย", "่", "ดี"), (True, True, False, True)),
        (("▁ខ្មែរ", "្ម", "ភាសា"), (True, False, True)),
        (("▁བོད", "་", "ཡིག"), (True, True, True)),
        (("▁မြန်", "မာ"), (True, True)),
        (("▁می", "\u200c", "خواهم"), (True, False, False)),
        (("▁<0xE4>", "<0xBD>", "<0xA0>"), (True, False, False)),
    ],
)
def test_script_rule_without_spaces_makes_tokens_words(pieces: tuple[str, ...], starts: tuple[bool, ...]) -> None:
    assert find_starts(*pieces) == list(starts)


@pytest.mark.parametrize("character", ["ก", "ລ", "ཀ", "က", "ក", "ᥐ", "あ", "カ", "ㄅ", "中", "𠀀", "豈", "ｱ", "。"])
def test_is_unspaced_in_scripts_without_spaces(character: str) -> None:
    assert is_unspaced(character)


@pytest.mark.parametrize("character", ["a", "é", "я", "ß", "ω", "א", "ع", "ी", "한", "አ", "ა", "հ", "1", ".", "«", "▁"])
def test_is_unspaced_not_in_scripts_with_spaces(character: str) -> None:
    assert not is_unspaced(character)


@pytest.mark.parametrize(
    "word",
    [
        "\u0939\u093f\u0928\u094d\u0926\u0940",  # Hindi: vowel signs (Mc) and a virama (Mn)
        "\u0e01\u0e34\u0e19\u0e19\u0e49\u0e33",  # Thai: a vowel and a tone above the consonant
        "Cafe\u0301s",  # an accent in NFD
        "\u0645\u06cc\u200c\u0631\u0648\u0645",  # Persian: U+200C within a word
        "\U00011103\U00011127\U00011103",  # Chakma, beyond U+FFFF
        "snake_case2",
    ],
)
def test_word_pattern_matches_marks_within_a_word(word: str) -> None:
    assert re.findall(word_pattern(), f"({word}, {word}\u00a0-") == [word, word]


def test_word_pattern_matches_every_mark_of_unicode() -> None:
    marks = [c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c) in ("Mn", "Mc")]
    assert re.fullmatch(word_pattern(), "a" + "".join(marks))
