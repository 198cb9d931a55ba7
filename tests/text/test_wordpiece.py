"""A `vocab.txt` gives the ids of transformers, with the tokens that were added to it, or is rejected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AddedToken, AutoTokenizer, BertTokenizerFast

from albert_cli.errors import CheckpointError
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.tokenizers import BERT_ROLES, lines_of_eight_languages, train_byte_level, train_wordpiece

PIECES = [*BERT_ROLES.values(), "cafe", "Cafe", "co", "##vid", "で", "猫"]


def write_pieces(directory: Path) -> None:
    (directory / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")


def test_vocab_txt_equals_its_tokenizer_json(tmp_path: Path) -> None:
    saved = train_wordpiece(tmp_path / "json")
    vocabulary = Vocabulary.load(saved)
    (tmp_path / "txt").mkdir()
    (tmp_path / "txt" / "vocab.txt").write_text("\n".join(vocabulary.pieces) + "\n", encoding="utf-8")
    lines = lines_of_eight_languages(800)
    assert Vocabulary.load(tmp_path / "txt").encode_batch(lines) == vocabulary.encode_batch(lines)


def test_vocab_txt_null_options_are_the_defaults(tmp_path: Path) -> None:
    write_pieces(tmp_path)
    options = {"do_lower_case": None, "strip_accents": None, "tokenize_chinese_chars": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    vocabulary = Vocabulary.load(tmp_path)
    assert [vocabulary.pieces[index] for index in vocabulary.encode("Café")] == ["cafe"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}),
        ("tokenizer_config.json", {"word_tokenizer_type": "mecab", "subword_tokenizer_type": "wordpiece"}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["tokenization.Words", None]}}),
        ("config.json", {"tokenizer_class": "BertJapaneseTokenizer"}),
    ],
)
def test_vocab_txt_of_another_tokenizer_is_rejected(name: str, values: dict[str, object], tmp_path: Path) -> None:
    write_pieces(tmp_path)
    (tmp_path / name).write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match="splits texts differently") as raised:
        Vocabulary.load(tmp_path)
    assert "tokenizer.json" in str(raised.value.hint)


@pytest.mark.parametrize("name", ["BertTokenizer", "BertTokenizerFast", "AlbertTokenizer", None])
def test_vocab_txt_of_a_bert_tokenizer_is_read(name: str | None, tmp_path: Path) -> None:
    write_pieces(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"tokenizer_class": name}))
    assert Vocabulary.load(tmp_path).pieces == PIECES


@pytest.mark.parametrize(
    ("config", "model_type"),
    [
        ({"tokenizer_class": "BertTokenizer", "do_lower_case": False}, None),
        ({"tokenizer_class": "BertTokenizerFast", "do_lower_case": False, "strip_accents": True}, "albert"),
        ({"tokenizer_class": "DistilBertTokenizer", "tokenize_chinese_chars": False, "strip_accents": False}, None),
        ({"tokenizer_class": "BertTokenizer"}, None),
        ({"do_lower_case": False}, "bert"),
        ({"do_lower_case": False}, None),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}, "bert"),
    ],
)
@pytest.mark.parametrize("lowercase", [True, False])
def test_options_of_tokenizer_json_equal_transformers(
    lowercase: bool, config: dict[str, object], model_type: str | None, tmp_path: Path
) -> None:
    """transformers builds the tokenizers of some classes from the pieces, without the normalizer of the file."""
    path = train_wordpiece(tmp_path) / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"]["lowercase"] = lowercase
    path.write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(BERT_ROLES | config))
    if model_type is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    vocabulary = Vocabulary.load(tmp_path)
    fast = AutoTokenizer.from_pretrained(tmp_path)
    lines = lines_of_eight_languages(400)
    assert vocabulary.encode_batch(lines) == fast(lines, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("has_options", [True, False])
def test_vocab_txt_with_added_tokens_equals_transformers(has_options: bool, tmp_path: Path) -> None:
    write_pieces(tmp_path)
    config: dict[str, object] = {"tokenizer_class": "BertTokenizer"}
    if has_options:
        flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "special"), False)
        masked = {**flags, "content": "[MASK]", "normalized": False, "special": True}
        added = {**flags, "content": "covidxyz", "normalized": True}
        config["added_tokens_decoder"] = {PIECES.index("[MASK]"): masked, len(PIECES): added}
    else:
        (tmp_path / "added_tokens.json").write_text(json.dumps({"covidxyz": len(PIECES)}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    vocabulary = Vocabulary.load(tmp_path)
    assert vocabulary.pieces == [*PIECES, "covidxyz"]
    fast = BertTokenizerFast.from_pretrained(tmp_path)
    for text in ("cafe covidxyz", "covid covidXYZcafe"):
        assert vocabulary.encode(text) == fast(text, add_special_tokens=False)["input_ids"]
    (tmp_path / "out").mkdir()
    vocabulary.copy_to(tmp_path / "out")
    assert Vocabulary.load(tmp_path / "out").fingerprint == vocabulary.fingerprint


def test_vocab_txt_special_added_token_equals_transformers(tmp_path: Path) -> None:
    """Text becomes a marker of entities, which has no role, but no token with a role."""
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "[", "]", "e", "##1"]) + "\n", encoding="utf-8")
    size = len(PIECES) + 4
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    added = {size: {**flags, "content": "[E1]", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "added_tokens_decoder": added})
    )
    vocabulary = Vocabulary.load(tmp_path)
    BertTokenizerFast.from_pretrained(tmp_path).save_pretrained(tmp_path / "json")
    (tmp_path / "out").mkdir()
    vocabulary.copy_to(tmp_path / "out")
    for directory in (tmp_path / "json", tmp_path / "out"):
        loaded = Vocabulary.load(directory)
        fast = AutoTokenizer.from_pretrained(directory)
        assert loaded.size == vocabulary.size == len(fast)
        for text in ("cafe [E1] co[E1]vid", "[e1]", "[E1]"):
            ids = fast(text, add_special_tokens=False)["input_ids"]
            assert loaded.encode(text) == vocabulary.encode(text) == ids
            assert [offsets.ids.tolist() for offsets in loaded.encode_with_offsets([text])] == [ids]
        assert loaded.encode("[E1] [MASK]") == [size, *loaded.encode("[MASK]")]
        assert loaded.mask_id not in loaded.encode("[E1] [MASK]")
    assert Vocabulary.load(tmp_path / "out").fingerprint == vocabulary.fingerprint
    assert size not in vocabulary.ordinary_ids


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
@pytest.mark.parametrize("has_json", [True, False])
def test_listed_special_token_equals_transformers(key: str, name: str, has_json: bool, tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*PIECES, "[", "]", "e", "##1", "[E1]"]) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    if has_json:
        BertTokenizerFast.from_pretrained(tmp_path).save_pretrained(tmp_path)
    path = tmp_path / name
    saved = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(saved | {key: ["[E1]", "[missing]"]}))
    fast = BertTokenizerFast.from_pretrained(tmp_path)
    vocabulary = Vocabulary.load(tmp_path)
    assert vocabulary.encode("cafe [E1]") == fast("cafe [E1]", add_special_tokens=False)["input_ids"]
    assert vocabulary.size == len(PIECES) + 5


def test_listed_special_token_keeps_its_options(tmp_path: Path) -> None:
    train_byte_level(tmp_path)
    marker = AddedToken("[E1]", lstrip=True, rstrip=True, special=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"additional_special_tokens": [marker]})
    tokenizer.save_pretrained(tmp_path)
    assert "[E1]" in (tmp_path / "tokenizer_config.json").read_text()  # in the list, too
    fast = AutoTokenizer.from_pretrained(tmp_path)
    ids = fast("a [E1] b", add_special_tokens=False)["input_ids"]
    assert len(ids) == 3  # without the blanks around the marker
    assert Vocabulary.load(tmp_path).encode("a [E1] b") == ids


def test_vocab_txt_mask_token_may_be_added(tmp_path: Path) -> None:
    pieces = [piece for piece in PIECES if piece != "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": len(pieces)}))
    assert Vocabulary.load(tmp_path).mask_id == len(pieces)


@pytest.mark.parametrize("index", [3, len(PIECES) + 1, -1])
def test_vocab_txt_added_token_with_another_id_raises(index: int, tmp_path: Path) -> None:
    write_pieces(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"covidxyz": index}))
    with pytest.raises(CheckpointError, match=f"'covidxyz' cannot have the id {index}"):
        Vocabulary.load(tmp_path)
