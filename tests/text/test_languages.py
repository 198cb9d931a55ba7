"""Tests of `text.languages`: a `--language` that is no code of a language is reported with codes near it."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.text.languages import nearest_codes, warn_about_language
from tests.helpers.command import albert


@pytest.mark.parametrize("language", ["kr", "kor", "kor_Hang", "Korean", "korian", "ko-KR", "ko_KR", "KO"])
def test_nearest_codes_of_wrong_language_has_the_code(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nearest_codes(language) == ["ko"]
    warn_about_language(language)
    assert "use ko" in " ".join(capsys.readouterr().err.split())


def test_nearest_codes_of_similar_names_are_right() -> None:
    names = ("Serbian", "Croatian", "Lithuanian", "Persian")
    assert [nearest_codes(name) for name in names] == [["sr"], ["hr"], ["lt"], ["fa"]]


@pytest.mark.parametrize("language", ["en", "ko", "de", "yue", "eng"])
def test_warn_about_language_of_a_code_prints_nothing(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    warn_about_language(language)
    assert not capsys.readouterr().err


def test_nearest_codes_of_three_letters_are_of_two() -> None:
    codes = ("deu", "ger", "zho_Hans", "jpn", "rus", "pes")
    assert [nearest_codes(code) for code in codes] == [["de"], ["de"], ["zh"], ["ja"], ["ru"], ["fa"]]


def test_vocab_and_data_warn_about_a_wrong_language(vocabulary_dir: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A sentence about a boat.\n\nAnother one about a train.\n" * 20)
    vocab = albert("vocab", text, "--size", 28, "--language", "Korean", "--out", tmp_path / "vocabulary")
    data = albert("data", text, "--vocab", vocabulary_dir, "--language", "Korean", "--out", tmp_path / "data")
    assert "--language Korean" in vocab.err and "--language Korean" in data.err
