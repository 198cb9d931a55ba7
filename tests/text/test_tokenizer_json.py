"""`AutoTokenizer` reads our `tokenizer.json` and gives our ids, with the exceptions that are tested here."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from albert_cli.errors import CheckpointError
from albert_cli.text.clean import Cleaning
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.tokenizer_json import _SEARCHED_CODES
from tests.helpers.vocabularies import load_sentencepiece

# These four characters are newer than the Unicode tables of `tokenizers`: they decompose only by Python's tables.
NEW_CHARACTERS = "\ua7f2\ua7f3\ua7f4\U0001f16c"
ASSIGNED_CHARACTERS = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Co", "Cs")]
OLD_CHARACTERS = [c for c in ASSIGNED_CHARACTERS if c not in NEW_CHARACTERS]
SPECIAL = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")


@pytest.fixture(scope="module")
def fast(vocabulary_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(vocabulary_dir)


def score(v: SentencePieceVocabulary, ids: list[int]) -> float:
    return float(sum(v.proto.pieces[i].score for i in ids))


def differing(v: SentencePieceVocabulary, fast: Any, texts: list[str]) -> list[str]:
    """Return the texts whose ids differ for another reason than a tie of two segmentations."""
    theirs = fast(texts, add_special_tokens=False)["input_ids"]
    pairs = zip(texts, v.encode_batch(texts), theirs, strict=True)
    return [t for t, a, b in pairs if a != b and abs(score(v, a) - score(v, b)) > 1e-3]


def test_unsearched_characters_are_neither_marks_nor_spaces() -> None:
    other_characters = list(map(chr, range(_SEARCHED_CODES.stop, sys.maxunicode + 1)))
    assert not any(map(unicodedata.combining, other_characters))
    assert not any(map(str.isspace, other_characters))


def test_auto_tokenizer_needs_no_protobuf(vocabulary_dir: Path) -> None:
    """Load the tokenizer where protobuf and sentencepiece cannot be imported.

    Importing torch is blocked too, to save the seconds that it takes.
    """
    program = """
import sys
sys.modules["google.protobuf"] = sys.modules["sentencepiece"] = sys.modules["torch"] = None
from transformers import AutoTokenizer
print(AutoTokenizer.from_pretrained(sys.argv[1])("one two", "three")["input_ids"])
"""
    arguments = [sys.executable, "-c", program, str(vocabulary_dir)]
    output = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    v = load_sentencepiece(vocabulary_dir)
    expected = [v.cls_id, *v.encode("one two"), v.sep_id, *v.encode("three"), v.sep_id]
    assert json.loads(output) == expected


def test_auto_tokenizer_pair_has_segment_ids(small_vocabulary: SentencePieceVocabulary, fast: Any) -> None:
    v = small_vocabulary
    encoded = fast("One text.", "And another text.")
    a = v.encode("One text.")
    b = v.encode("And another text.")
    assert encoded["input_ids"] == [v.cls_id, *a, v.sep_id, *b, v.sep_id]
    assert encoded["token_type_ids"] == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    assert fast("One text.")["token_type_ids"] == [0] * (len(a) + 2)
    assert fast.model_max_length == 512
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(fast, f"{name}_token_id") == getattr(v, f"{name}_id")


def test_literal_mask_is_special_for_hugging_face_only(small_vocabulary: SentencePieceVocabulary, fast: Any) -> None:
    v = small_vocabulary
    ids = fast("The [MASK] of a [MASK].", add_special_tokens=False)["input_ids"]
    pieces = [v.pieces[i] for i in ids]
    assert [p for p in pieces if p == "[MASK]"] == ["[MASK]"] * 2
    assert "".join(pieces) == "▁the[MASK]▁of▁a[MASK]."  # the word mark only after a space
    assert v.mask_id not in v.encode("The [MASK] of a [MASK].")


@given(st.lists(st.sampled_from(OLD_CHARACTERS), max_size=12).map("".join))
@example("ΟΔΟΣ ΟΔΟΣ'Α Σ ΑΣ)")
@example("हिन्दी がぎ 한국어 각 ｱﾞ ～ ﷺ İ ǆ")
@example("a\u200bb\x1cc\x85d\u2028 ▁e ▁▁ ")
@example("\u07eb\0")
@example("\x01\u200b\u0301\u200ba")
@example("2011, 1,000,000, ①，")
def test_ids_of_any_text_are_equal(small_vocabulary: SentencePieceVocabulary, fast: Any, text: str) -> None:
    if not any(token in text for token in SPECIAL):
        assert differing(small_vocabulary, fast, [text, f"a{text}b"]) == []


def test_ids_of_twenty_thousand_characters_are_equal(small_vocabulary: SentencePieceVocabulary, fast: Any) -> None:
    characters = OLD_CHARACTERS[:: max(1, len(OLD_CHARACTERS) // 20_000)]  # evenly spaced, about 20,000
    assert differing(small_vocabulary, fast, [f"x{c}y {c}" for c in characters]) == []


@pytest.mark.parametrize(
    "cleaning",
    [
        Cleaning(lowercase=False, strip_accents=False, normal_form="NFKC"),
        Cleaning(lowercase=True, strip_accents=False, normal_form="NFC"),
        Cleaning(lowercase=True, strip_accents=True, normal_form="none"),
        Cleaning(lowercase=False),
        Cleaning(lowercase=True, strip_accents=False, normal_form="NFKD"),
        Cleaning(lowercase=False, strip_accents=False, normal_form="none"),
        Cleaning(lowercase=True, strip_accents=True, normal_form="NFKD", transformers_rules=True),
    ],
)
def test_ids_with_other_cleanings_are_equal(tmp_path: Path, vocabulary_dir: Path, cleaning: Cleaning) -> None:
    from transformers import AutoTokenizer

    v = SentencePieceVocabulary((vocabulary_dir / "spiece.model").read_bytes(), cleaning)
    v.copy_to(tmp_path)
    texts = [
        "Élève, ﬁ № ½!",
        "각 한국어 가",
        "ΟΔΟΣ Σ",
        "全角，１～２ ｶﾞ",
        "Việt Nam",
        "naïve 2011,",
        "हिन्दी",
        "ẍ ǰ̌",
        "تعذَّر",  # two marks in another order than the standard's
        "أُضيف",  # two marks on a letter, of which the second composes with it
    ]
    assert differing(v, AutoTokenizer.from_pretrained(tmp_path), texts) == []


def test_damaged_normalization_rules_are_an_error(vocabulary_dir: Path) -> None:
    model = (vocabulary_dir / "spiece.model").read_bytes()
    vocabulary = SentencePieceVocabulary(model, Cleaning())
    vocabulary.proto.normalizer_spec.precompiled_charsmap = b"\xff" * 8
    with pytest.raises(CheckpointError, match=r"spiece\.model: its normalization rules are damaged"):
        list(vocabulary.encode_with_offsets(["text"]))
