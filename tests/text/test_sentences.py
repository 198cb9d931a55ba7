from hypothesis import example, given
from hypothesis import strategies as st

from albert_cli.text.corpus import document_hash, hash_normalized_text
from albert_cli.text.sentences import split_at_stops, split_paragraphs, split_sentences

AWKWARD = st.sampled_from([*".!?。…\"'“”()[]», \n\t\r", "\u00a0", "\u2028", "\u202f", "\x85", "\u3000", "\u0301"])
TEXT = st.lists(st.one_of(AWKWARD, st.characters(exclude_categories=["Cs"]), st.sampled_from(["Dr.", "e.g.", "A"])))


def test_abbreviations_do_not_end_a_sentence() -> None:
    assert split_sentences("Dr. Smith went home, e.g. by bus. He slept.") == [
        "Dr. Smith went home, e.g. by bus.",
        "He slept.",
    ]


def test_a_line_is_a_paragraph() -> None:
    assert split_sentences("No stop here\n\n  and  none here ") == ["No stop here", "and none here"]


def test_a_line_that_is_a_sentence_stays() -> None:
    sentence = "The cat, which was old, slept on the mat (again)."
    assert split_sentences(sentence) == [sentence]


def test_nothing_gives_nothing() -> None:
    assert split_sentences("") == split_sentences(" \n \u00a0") == []


@given(st.builds("".join, TEXT), st.sampled_from(["en", "de", "zh", "xx", ""]))
@example("B\u00a0.", "en")  # makes an unguarded sentencex panic
@example("A\u2029.»", "en")
def test_every_text_is_split_and_no_character_lost(text: str, language: str) -> None:
    sentences = split_sentences(text, language)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence and sentence == " ".join(sentence.split()) for sentence in sentences)


@given(st.builds("".join, TEXT))
def test_the_plain_rule_loses_nothing_either(text: str) -> None:
    paragraph = " ".join(text.split())
    assert "".join(split_at_stops(paragraph)) == paragraph


def test_the_plain_rule_cuts_after_stops() -> None:
    assert [s.strip() for s in split_at_stops('One. "Two!" Three? 四。五')] == [
        "One.",
        '"Two!"',
        "Three?",
        "四。",
        "五",
    ]


def test_an_endless_paragraph_takes_no_quadratic_time() -> None:
    text = "“ " * 100_000  # 18 s for an unbounded paragraph of this kind
    assert "".join(split_sentences(text)).replace(" ", "") == "“" * 100_000


@given(text=st.text())
def test_paragraphs_are_lines_with_single_spaces_and_keep_the_documents_hash(text: str) -> None:
    assert split_paragraphs(text) == [p for line in text.split("\n") if (p := " ".join(line.split()))]
    assert hash_normalized_text(" ".join(split_paragraphs(text))) == document_hash(text)
