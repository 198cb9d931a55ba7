from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unicodedata import combining, normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.text.clean import Cleaning, TokenizerConfig, clean, clean_single_spaced

FORMS = ["NFKD", "NFKC", "NFC", "none"]
CLEANINGS = st.builds(Cleaning, st.booleans(), st.booleans(), st.sampled_from(FORMS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Two \t words\u00a0here\u2028now ", "two words here now"),
        ("Café Å", "cafe a"),
        ("Ørsted Straße", "ørsted straße"),  # letters of their own, not accented ones
        ("½ ﬁ", "1⁄2 fi"),
        ("İstanbul", "istanbul"),
        ("がぎ", "かき"),  # the dakuten is a combining mark
        ("ΟΔΟΣ", "οδος"),
        ("a ´ b", "a b"),  # NFKD turns ´ into a space with an accent
        ("``quoted''", "``quoted''"),  # no quote replacement, unlike XLNet
        ("a\ud800b \ud83d\ude00", "a\ufffdb 😀"),  # a lone surrogate, and two that make a character
        ("", ""),
    ],
)
def test_clean_by_default_follows_the_reference(text: str, expected: str) -> None:
    assert clean(text, Cleaning()) == expected


@pytest.mark.parametrize(
    ("cleaning", "expected"),
    [
        (Cleaning(lowercase=False), "ELEVE fi"),
        (Cleaning(strip_accents=False, normal_form="NFC"), "élève ﬁ"),
        (Cleaning(strip_accents=False, normal_form="NFKC"), "élève fi"),
        (Cleaning(strip_accents=False), "élève fi"),  # text is decomposed only if accents are dropped
        (Cleaning(normal_form="NFC"), "eleve ﬁ"),
        (Cleaning(normal_form="none"), "eleve ﬁ"),
        (Cleaning(lowercase=False, strip_accents=False, normal_form="none"), "ÉLÈVE ﬁ"),
    ],
)
def test_clean_with_each_option_changes_one_step(cleaning: Cleaning, expected: str) -> None:
    assert clean("ÉLÈVE ﬁ", cleaning) == expected


def test_clean_by_the_rules_of_transformers_has_plain_quotes() -> None:
    cleaning = Cleaning(transformers_rules=True)
    assert clean(" ``Quoted''  É", cleaning) == '"quoted" e'
    assert clean_single_spaced(["``a''", "B"], cleaning) == ['"a"', "b"]


@given(st.text(), CLEANINGS)
def test_clean_applied_twice_changes_nothing_more(text: str, cleaning: Cleaning) -> None:
    once = clean(text, cleaning)
    assert clean(once, cleaning) == once
    assert once == " ".join(once.split())


@given(st.text(st.characters(max_codepoint=127)), CLEANINGS)
def test_clean_of_ascii_collapses_spaces_and_lowers(text: str, cleaning: Cleaning) -> None:
    expected = " ".join(text.split())
    assert clean(text, cleaning) == (expected.lower() if cleaning.lowercase else expected)


def clean_without_shortcuts(text: str, cleaning: Cleaning) -> str:
    """Apply the rule of `clean` to one character at a time, without shortcuts."""
    before, after = cleaning.unicode_forms
    text = " ".join(text.split())
    text = normalize(before, text)
    if cleaning.strip_accents:
        text = "".join(c for c in text if not combining(c))
    text = text.lower() if cleaning.lowercase else text
    return " ".join((normalize(after, text) if after else text).split())


@given(st.text(), CLEANINGS)
def test_clean_equals_the_rule_character_by_character(text: str, cleaning: Cleaning) -> None:
    assert clean(text, cleaning) == clean_without_shortcuts(text, cleaning)


def test_clean_drops_every_combining_character() -> None:
    characters = [chr(c) for c in range(sys.maxunicode + 1) if combining(chr(c))]
    assert len(characters) > 800
    assert clean("".join(f"x{c}" for c in characters), Cleaning()) == "x" * len(characters)


def read_cleaning(folder: Path, values: dict[str, Any]) -> Cleaning:
    store.write_json(folder / "tokenizer_config.json", values)
    return store.read_record(folder / "tokenizer_config.json", TokenizerConfig).cleaning


def test_config_reads_our_key_or_hugging_face_options(tmp_path: Path) -> None:
    saved = {"lowercase": False, "strip_accents": False, "normal_form": "NFC", "transformers_rules": True}
    assert read_cleaning(tmp_path, {"albert_cleaning": saved}) == Cleaning(False, False, "NFC", True)
    assert read_cleaning(tmp_path, {}) == Cleaning()
    assert read_cleaning(tmp_path, {"do_lower_case": False, "keep_accents": True}) == Cleaning(False, False, "NFKD")
    for wrong in ({"lowercase": True}, 3, {"lowercase": True, "strip_accents": True, "normal_form": "NFX"}):
        with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: albert_cleaning"):
            read_cleaning(tmp_path, {"albert_cleaning": wrong})
