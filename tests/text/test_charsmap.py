from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceNormalizer, sentencepiece_model_pb2

from albert_cli.text.charsmap import keep_character
from albert_cli.text.clean import Cleaning
from albert_cli.text.normalization_report import warn_about_normalization
from albert_cli.text.unigram import ZWNJ
from tests.helpers.text_files import build_largest_vocabulary
from tests.helpers.vocabularies import load_sentencepiece

KEEP_ALL = Cleaning(lowercase=False, strip_accents=False, normal_form="NFC")


def make_normalizer(model: bytes) -> Any:
    return SentencePieceNormalizer(
        model_proto=model, add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
    )


@pytest.mark.parametrize("preserved", ["\u200c", "\u200b", "\ufeff", "Ａ", "ﷺ"])
def test_keep_character_changes_no_other_character(preserved: str) -> None:
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_model_proto())
    before = make_normalizer(model.SerializeToString())
    model.normalizer_spec.precompiled_charsmap = keep_character(model.normalizer_spec.precompiled_charsmap, preserved)
    after = make_normalizer(model.SerializeToString())
    assert before.Normalize(f"x{preserved}y") != f"x{preserved}y"
    assert after.Normalize(f"x{preserved}y") == f"x{preserved}y"
    text = " ".join(f"x{chr(c)}y" for c in range(1, 0x20000) if not 0xD800 <= c < 0xE000 and chr(c) != preserved)
    words = zip(before.Normalize(text).split(" "), after.Normalize(text).split(" "), strict=True)
    assert [(old, new) for old, new in words if old != new] == []


def test_keep_character_without_a_rule_changes_nothing() -> None:
    model = sentencepiece_model_pb2.ModelProto()
    model.ParseFromString(SentencePieceNormalizer(rule_name="nmt_nfkc").serialized_model_proto())
    charsmap = model.normalizer_spec.precompiled_charsmap
    assert keep_character(charsmap, "a") == charsmap
    assert keep_character(charsmap, "今") == charsmap


WORDS = [
    "کتاب\u200cها",
    "می\u200cخواهم",
    "نمی\u200cروم",
    "خانه",
    "شهر",
    "زبان\u200cشناسی",
    "👩\u200d🔬",
    "ක්\u200dරියා",
    "क्\u200cष",
]


@pytest.mark.parametrize("cleaning", [Cleaning(), KEEP_ALL], ids=["paper", "keep all"])
def test_vocabulary_keeps_zwnj_on_request_with_equal_ids(
    tmp_path: Path, cleaning: Cleaning, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenizers import Tokenizer

    generator = random.Random(3)
    lines = [" ".join(generator.choices(WORDS, k=6)) + "." for _ in range(400)]
    (tmp_path / "fa.txt").write_text("\n".join(lines), encoding="utf-8")
    build_largest_vocabulary(tmp_path / "fa.txt", tmp_path / "lost", cleaning=cleaning)
    assert "use --keep-zwnj" in capsys.readouterr().err
    built = build_largest_vocabulary(tmp_path / "fa.txt", tmp_path / "preserved", cleaning=cleaning, keep_zwnj=True)
    assert "--keep-zwnj" not in capsys.readouterr().err
    assert built.report.tokens.character_coverage == 1
    assert built.report.tokens.unknown_rate == 0
    vocabulary = load_sentencepiece(tmp_path / "preserved")
    tokenizer = Tokenizer.from_file(str(tmp_path / "preserved" / "tokenizer.json"))
    for line in [*lines[:50], ZWNJ, f"{ZWNJ}a {ZWNJ} b{ZWNJ}", f"Ａ{ZWNJ}２,", f"e{ZWNJ}\u0301"]:
        ids = vocabulary.encode(line)
        assert tokenizer.encode(line, add_special_tokens=False).ids == ids
    assert vocabulary.decode(vocabulary.encode("می\u200cخواهم")) == vocabulary.normalize("می\u200cخواهم")
    assert "\u200c" in vocabulary.normalize("می\u200cخواهم")


def test_warn_about_zwnj_needs_one_percent_of_the_words(capsys: pytest.CaptureFixture[str]) -> None:
    warn_about_normalization(None, ["one two three"] * 100 + ["می\u200cخواهم"], KEEP_ALL)
    assert capsys.readouterr().err == ""
