from __future__ import annotations

import pytest

from albert_cli.text.clean import Cleaning
from albert_cli.text.normalization_report import measure_accent_stripping, warn_about_normalization
from tests.helpers.languages import sentences


def test_accent_report_counts_changed_and_merged_words() -> None:
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
def test_warn_names_the_loss_of_each_language(language: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = sentences(language)
    warn_about_normalization(measure_accent_stripping(text, Cleaning()), text, Cleaning())
    printed = capsys.readouterr().err
    assert says in printed
    assert len(printed.splitlines()) == bool(says)
    keep_all = Cleaning(lowercase=False, strip_accents=False)
    warn_about_normalization(measure_accent_stripping(text, keep_all), text, keep_all)
    assert capsys.readouterr().err == ""


def test_warn_about_english_prints_nothing(documents: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = ["The café was naïve.", *documents]
    warn_about_normalization(measure_accent_stripping(text, Cleaning()), text, Cleaning())
    assert capsys.readouterr().err == ""
