from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.corpus import Document
from albert_cli.text.sampling import Sample, clean_in_place, draw, loss_of_accents, warn_of_losses
from tests.text.languages import sentences


def documents(sizes: list[int]) -> list[Document]:
    """Documents of so many sentences, which are numbered through."""
    numbers = iter(range(sum(sizes)))
    return [Document("\n".join(f"Number {next(numbers)}." for _ in range(n)), "made", 1) for n in sizes]


def drawn(sizes: list[int], size: int, seed: int = 0) -> tuple[Sample, list[int]]:
    filled: list[int] = []
    sample = draw(documents(sizes), size, seed, "en", lambda kept: filled.append(len(kept)))
    return sample, filled


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 100))
def test_a_sample_has_the_size_asked_for_and_no_sentence_twice(sizes: list[int], size: int) -> None:
    sample, filled = drawn(sizes, size)
    expected = min(size, sum(sizes))
    assert (sample.documents, sample.read) == (len(sizes), sum(sizes))
    assert len(set(sample.sentences)) == len(sample.sentences) == expected
    assert filled == ([expected] if sizes else [])
    assert sample == drawn(sizes, size)[0]


def test_every_place_is_drawn_equally_often() -> None:
    """Chi-square over ten parts of the text, 400 samples of 50 out of 1,000: the 0.1 % point at 9 degrees is 27.9."""
    parts = [0] * 10
    text = documents([1] * 10 + [90, 400, 500])
    for seed in range(400):
        for sentence in draw(text, 50, seed, "en", lambda kept: None).sentences:
            parts[int(sentence[7:-1]) // 100] += 1
    assert sum(parts) == 400 * 50
    assert sum((n - 2000) ** 2 / 2000 for n in parts) < 27.9


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
    accents = loss_of_accents(text, Cleaning())
    assert accents
    assert accents.changed == pytest.approx(4 / 12)  # of the words after cleaning without this step
    assert accents.merged == pytest.approx(2 / 12)
    assert accents.examples == [("schön", "schon", "schon")]
    assert loss_of_accents(text, Cleaning(False, False, "NFC")) is None


@pytest.mark.parametrize(
    ("language", "says"),
    [
        ("german", "makes 2.8% equal to another word (schön = schon, würde = wurde)"),
        ("russian", "changes 25.4% of the words"),  # й and ё
        ("hindi", "dropping accents and marks changes 24.2%"),  # the virama
        ("japanese", "dropping accents and marks changes 90.0%"),  # the dakuten
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
    warn_of_losses(loss_of_accents(text, Cleaning()), text, Cleaning())
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == bool(says)
    kept = Cleaning(lowercase=False, strip_accents=False)
    warn_of_losses(loss_of_accents(text, kept), text, kept)
    assert capsys.readouterr().err == ""


def test_english_is_not_warned_of(documents: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    text = ["The café was naïve.", *documents]
    warn_of_losses(loss_of_accents(text, Cleaning()), text, Cleaning())
    assert capsys.readouterr().err == ""
