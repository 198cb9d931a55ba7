"""The form of a pair of texts equals what transformers computes with the same tokenizer files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertTokenizer, RobertaTokenizer

from albert_cli.text.pair_template import PairTemplate, read_pair_template
from albert_cli.text.vocabulary import CONFIG_FILE, Vocabulary
from tests.helpers.tokenizers import train_byte_level, train_wordpiece


def theirs(directory: Path) -> PairTemplate:
    """Return the form of a pair that transformers gives."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    pair = tokenizer("Fass", "Fass")
    one_text = tokenizer("Fass", add_special_tokens=False)["input_ids"]
    separators = len(pair["input_ids"]) - 2 * len(one_text) - 2
    return PairTemplate(1 in pair.get("token_type_ids", []), separators)


@pytest.mark.parametrize("kind", ["BERT", "RoBERTa", "no class", "albert"])
def test_pair_template_equals_transformers(kind: str, tmp_path: Path) -> None:
    saved = (train_byte_level if kind == "RoBERTa" else train_wordpiece)(tmp_path / "trained")
    if kind == "BERT":
        BertTokenizer.from_pretrained(saved).save_pretrained(saved)
    elif kind == "RoBERTa":
        RobertaTokenizer.from_pretrained(saved).save_pretrained(saved)
    elif kind == "albert":
        Vocabulary.load(saved).copy_to(saved)
    expected = {"RoBERTa": PairTemplate(False, 2), "no class": PairTemplate(False, 1)}.get(kind, PairTemplate(True, 1))
    assert read_pair_template(saved) == theirs(saved) == expected


@pytest.mark.parametrize(
    ("config", "has_second_segment"),
    [
        ({}, True),
        ({"tokenizer_class": "AlbertTokenizer"}, True),
        ({"tokenizer_class": "AlbertTokenizer", "backend": "tokenizers"}, False),
        ({"tokenizer_class": "XLMRobertaTokenizerFast"}, False),
        ({"tokenizer_class": "BertTokenizer", "model_input_names": ["input_ids", "attention_mask"]}, False),
        ({"backend": "tokenizers", "model_input_names": ["input_ids", "token_type_ids"]}, True),
    ],
)
def test_pair_template_segments_by_version_and_key(
    config: dict[str, object], has_second_segment: bool, tmp_path: Path
) -> None:
    (tmp_path / CONFIG_FILE).write_text(json.dumps(config))
    assert read_pair_template(tmp_path) == PairTemplate(has_second_segment, 1)
