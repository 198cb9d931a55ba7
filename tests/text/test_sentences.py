from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from albert_cli.text.corpus import document_hash, hash_single_spaced
from albert_cli.text.sentences import (
    _MAX_PARAGRAPH_CHARACTERS,
    _load_segmenter,
    split_at_stops,
    split_paragraphs,
    split_sentences,
)

AWKWARD = st.sampled_from([*".!?。…\"'“”()[]», \n\t\r", "\u00a0", "\u2028", "\u202f", "\x85", "\u3000", "\u0301"])


TEXT = st.lists(st.one_of(AWKWARD, st.characters(exclude_categories=["Cs"]), st.sampled_from(["Dr.", "e.g.", "A"])))


def test_split_abbreviation_does_not_end_a_sentence() -> None:
    assert split_sentences("Dr. Smith went home, e.g. by bus. He slept.") == [
        "Dr. Smith went home, e.g. by bus.",
        "He slept.",
    ]


def test_split_line_end_ends_a_sentence() -> None:
    assert split_sentences("No stop here\n\n  and  none here ") == ["No stop here", "and none here"]


def test_split_single_sentence_is_unchanged() -> None:
    sentence = "The cat, which was old, slept on the mat (again)."
    assert split_sentences(sentence) == [sentence]


def test_split_blank_text_is_empty() -> None:
    assert split_sentences("") == split_sentences(" \n \u00a0") == []


@given(st.builds("".join, TEXT), st.sampled_from(["en", "de", "zh", "xx", ""]))
@example("B\u00a0.", "en")  # makes an unguarded sentencex panic
@example("A\u2029.»", "en")
def test_split_loses_no_character(text: str, language: str) -> None:
    sentences = split_sentences(text, language)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == " ".join(sentence.split()) for sentence in sentences)


@given(st.builds("".join, TEXT))
def test_split_at_stops_loses_no_character(text: str) -> None:
    paragraph = " ".join(text.split())
    assert "".join(split_at_stops(paragraph)) == paragraph


def test_split_at_stops_splits_after_each_mark() -> None:
    assert [s.strip() for s in split_at_stops('One. "Two!" Three? 四。五')] == [
        "One.",
        '"Two!"',
        "Three?",
        "四。",
        "五",
    ]


def test_split_bounds_the_paragraphs_of_sentencex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between open quotes sentencex takes quadratic time."""
    segment = _load_segmenter()
    lengths: list[int] = []

    def record_length(language: str, paragraph: str) -> list[str]:
        lengths.append(len(paragraph))
        return segment(language, paragraph)

    monkeypatch.setattr("albert_cli.text.sentences._load_segmenter", lambda: record_length)
    text = "“ " * 20_000
    assert "".join(split_sentences(text)).replace(" ", "") == "“" * 20_000
    assert len(lengths) > 1 and max(lengths) <= _MAX_PARAGRAPH_CHARACTERS


@given(text=st.text())
def test_split_paragraphs_keeps_the_document_hash(text: str) -> None:
    lines = (" ".join(line.split()) for line in text.split("\n"))
    assert split_paragraphs(text) == list(filter(None, lines))
    assert hash_single_spaced(" ".join(split_paragraphs(text))) == document_hash(text)


SENTENCES = {
    "khmer": ("km", "ខ្ញុំទៅផ្សារ។ គាត់ទៅសាលា។ថ្ងៃនេះក្តៅ។", 3),
    "tibetan": ("bo", "བཀྲ་ཤིས་བདེ་ལེགས། ང་ལ་ཁང་པ་ཡོད། །དེ་རིང་ཚ་བ་ཆེན་པོ་རེད།", 3),
    "thai": ("th", "วันนี้อากาศดีมากเราจึงไปเดินเล่นที่สวนสาธารณะใกล้บ้าน แล้วฝนก็ตกลงมาอย่างหนัก " * 4, 4),
    "lao": ("lo", "ມື້ນີ້ອາກາດດີຫຼາຍພວກເຮົາຈຶ່ງໄປຍ່າງຫຼິ້ນຢູ່ສວນສາທາລະນະໃກ້ບ້ານ ແລ້ວຝົນກໍ່ຕົກລົງມາ " * 4, 4),
    "amharic": ("am", "ሰላም ነው። እንዴት ነህ። ደህና ነኝ።", 3),
    "burmese": ("my", "ကျွန်တော်သွားတယ်။ သူလာတယ်။", 2),
}


@pytest.mark.parametrize(("language", "text", "count"), SENTENCES.values(), ids=SENTENCES)
def test_split_scripts_without_latin_stops(language: str, text: str, count: int) -> None:
    for code in (language, "en"):
        sentences = split_sentences(text, code)
        assert len(sentences) >= count
        assert "".join("".join(sentences).split()) == "".join(text.split())


@pytest.mark.parametrize(
    "sentences",
    [
        ["«ខ្ញុំទៅផ្សារ។»", "គាត់និយាយ។"],
        ["(«ខ្ញុំទៅផ្សារ។»)", "គាត់និយាយ។"],
        ["ក។", '"ខ។"'],
        ["ខ្ញុំទិញបាយ ត្រី ។ល។ ហើយទៅផ្ទះ។", "គាត់ទៅសាលា។"],
        ["ត្រី។ល។"],
        ["«བཀྲ་ཤིས།»", "ང་ལ་ཁང་པ་ཡོད།"],
    ],
)
def test_split_khmer_quotes_and_etc_remain_whole(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences), "km") == sentences


WITHOUT_STOPS = {
    "chinese": "今天天氣很好，我們去公園散步，後來下雨，大家回家吃飯，" * 40,
    "thai without spaces": "ประเทศรัฐบาลประชาชนเศรษฐกิจ" * 60,
    "english": "the ships left the harbour and sailed to the north, then they came back; " * 40,
    "english without marks": "the ships left the harbour and sailed to the north " * 60,
    "one word": "donaudampfschifffahrt" * 200,
    "marks": "é,;" * 900,
}


@pytest.mark.parametrize("text", WITHOUT_STOPS.values(), ids=WITHOUT_STOPS)
def test_split_long_paragraph_without_a_stop(text: str) -> None:
    sentences = split_sentences(text)
    assert len(sentences) > 1
    assert max(map(len, sentences)) <= 1000
    assert min(map(len, sentences[:-1])) >= 60
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_split_keeps_a_long_sentence_that_people_write() -> None:
    sentence = "When the ships, which had left the harbour in the morning, came back, " * 12 + "it was evening."
    assert split_sentences(sentence) == [sentence]


def test_long_sentence_is_not_split_within_numbers() -> None:
    numbers = [f"{i},{i:03}.5 at 12:{i % 60:02}" for i in range(100, 400)]
    parts = split_sentences(" and ".join(numbers))
    assert len(parts) > 1
    assert re.findall(r"\d+,\d+\.5|12:\d\d", " ".join(parts)) == [word for n in numbers for word in n.split(" at ")]
