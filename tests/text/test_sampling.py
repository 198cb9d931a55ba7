from __future__ import annotations

import gzip
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.text.build_vocabulary import VocabularySettings, build
from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.normalization_report import measure_accent_stripping, warn_about_normalization
from albert_cli.text.sampling import SentenceSample, clean_in_place
from albert_cli.text.work_units import split_sources
from tests.helpers.languages import sentences


def drawn(size: int, *texts: int, seed: int = 0) -> SentenceSample:
    """A sample of texts of so many numbered sentences each, added in some order."""
    whole, first = SentenceSample(size, seed), 0
    parts = []
    for number, length in enumerate(texts):
        part = SentenceSample(size, seed)
        part.add((number << 40) + np.arange(length), [f"Number {first + i}." for i in range(length)])
        part.sentences_read += length
        parts.append(part)
        first += length
    for part in random.Random(size).sample(parts, len(parts)):
        whole.merge(part)
    whole.finish()
    return whole


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 100))
def test_a_sample_has_the_size_asked_for_and_no_sentence_twice(sizes: list[int], size: int) -> None:
    sample = drawn(size, *sizes)
    assert sample.sentences_read == sum(sizes)
    assert len(set(sample.sentences)) == len(sample.sentences) == min(size, sum(sizes))
    numbers = [int(sentence[7:-1]) for sentence in sample.sentences]
    assert numbers == sorted(numbers), "in the order of the text"


def test_every_place_is_drawn_equally_often() -> None:
    """Chi-square over ten parts of the text, 400 samples of 50 out of 1,000: the 0.1 % point at 9 degrees is 27.9."""
    parts = [0] * 10
    for seed in range(400):
        for sentence in drawn(50, *[1] * 10, 90, 400, 500, seed=seed).sentences:
            parts[int(sentence[7:-1]) // 100] += 1
    assert sum(parts) == 400 * 50
    assert sum((n - 2000) ** 2 / 2000 for n in parts) < 27.9


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch, documents_file: Path) -> list[str]:
    """A plain file that is cut into some twenty portions, and a compressed one of some weight."""
    monkeypatch.setattr(
        "albert_cli.text.build_vocabulary.split_sources",
        partial(split_sources, unit_bytes=documents_file.stat().st_size // 20),
    )
    packed = documents_file.with_suffix(".txt.gz")
    packed.write_bytes(gzip.compress(documents_file.read_bytes(), mtime=0))
    return [str(documents_file), f"{packed}@1.5"]


def contents(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.name != ".lock"}


def test_vocabulary_is_equal_for_any_number_of_workers(tmp_path: Path, in_parts: list[str]) -> None:
    settings = VocabularySettings(300, sample_size=1000)
    built = build(in_parts, tmp_path / "one", settings, workers=1)
    assert built.report.sentences.read > 1000
    assert len(built.report.request.sources) > 15
    build(in_parts, tmp_path / "two", settings, workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_cleaning_in_place_is_cleaning_each() -> None:
    texts = [" A  b", "", "É!", "\t", "\N{COMBINING ACUTE ACCENT}", "c"] * 6000
    expected = [cleaned for text in texts if (cleaned := clean(text, Cleaning()))]
    clean_in_place(texts, Cleaning())
    assert texts == expected == ["a b", "e!", "c"] * 6000
    for nothing in ([], ["", " "]):
        clean_in_place(nothing, Cleaning())
        assert nothing == []


def test_losses_count_words_that_become_another() -> None:
    text = ["Now schön schon schon schon", "Now schön über, Arm arm", "Now für"]
    accents = measure_accent_stripping(text, Cleaning())
    assert accents
    assert accents.changed == pytest.approx(4 / 12)  # of the words after cleaning without this step
    assert accents.merged == pytest.approx(2 / 12)
    assert accents.examples == [("schön", "schon", "schon")]
    assert measure_accent_stripping(text, Cleaning(False, False, "NFC")) is None


@pytest.mark.parametrize(
    ("language", "says"),
    [
        ("german", "merges 2.8% with another word (schön = schon, würde = wurde)"),
        ("russian", "changes 25.4% of the words"),  # й and ё
        ("hindi", "stripping accents changes 24.2%"),  # the virama
        ("japanese", "stripping accents changes 90.0%"),  # the dakuten
        ("turkish", "--no-lowercase"),
        ("greek", "--no-strip-accents"),
        ("korean", ""),  # decomposed, and composed again by SentencePiece
        ("chinese", ""),
    ],
)
def test_one_warning_names_what_a_language_would_lose(
    language: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = sentences(language)
    warn_about_normalization(measure_accent_stripping(text, Cleaning()), text, Cleaning())
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == bool(says)
    kept = Cleaning(lowercase=False, strip_accents=False)
    warn_about_normalization(measure_accent_stripping(text, kept), text, kept)
    assert capsys.readouterr().err == ""


def test_english_is_not_warned_of(documents: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = ["The café was naïve.", *documents]
    warn_about_normalization(measure_accent_stripping(text, Cleaning()), text, Cleaning())
    assert capsys.readouterr().err == ""
