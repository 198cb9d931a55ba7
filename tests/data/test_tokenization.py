from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from albert_cli.text.clean import Cleaning, clean, clean_single_spaced
from albert_cli.text.sentences import split_sentences


@given(text=st.text(), lowercase=st.booleans())
def test_clean_single_spaced_equals_clean(text: str, lowercase: bool) -> None:
    cleaning = Cleaning(lowercase=lowercase)
    sentences = split_sentences(text)
    assert clean_single_spaced(sentences, cleaning) == [clean(sentence, cleaning) for sentence in sentences]
