"""A Unigram `tokenizer.json` becomes a SentencePiece model in memory if the ids agree."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import ByteLevelBPETokenizer, CharBPETokenizer
from transformers import AlbertTokenizer, AutoTokenizer

from albert_cli.errors import CheckpointError
from albert_cli.text.build_vocabulary import VocabularySettings, build_vocabulary
from albert_cli.text.clean import Cleaning
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.tokenizers_vocabulary import TokenizersVocabulary
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.text_files import write_numbered_sentences
from tests.helpers.tokenizers import lines_of_eight_languages
from tests.helpers.vocabularies import ALBERT_OPTIONS, train_elsewhere


@pytest.mark.parametrize("cleaning", [Cleaning(), Cleaning(False, False, "NFKC"), Cleaning(True, False, "NFC")])
def test_vocabulary_saved_by_transformers_is_the_same(cleaning: Cleaning, tmp_path: Path) -> None:
    """Load it with and without the key of the cleaning in `tokenizer_config.json`."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(lines_of_eight_languages(4000)), encoding="utf-8")
    build_vocabulary([str(text)], tmp_path / "ours", VocabularySettings(600, cleaning=cleaning))
    ours = Vocabulary.load(tmp_path / "ours")
    AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved" / "spiece.model").exists()
    saved = Vocabulary.load(tmp_path / "saved")
    assert saved.fingerprint == ours.fingerprint
    path = tmp_path / "saved" / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["albert_cleaning"]
    path.write_text(json.dumps(config))
    lines = lines_of_eight_languages(8000)[::21]  # with every phrase
    for vocabulary in (saved, Vocabulary.load(tmp_path / "saved")):
        assert isinstance(vocabulary, SentencePieceVocabulary)
        assert vocabulary.encode_batch(lines) == ours.encode_batch(lines)


def test_other_normalizer_keeps_the_tokenizers_backend(tmp_path: Path) -> None:
    build_vocabulary([str(write_numbered_sentences(tmp_path))], tmp_path / "ours", VocabularySettings(120))
    AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"] = {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}
    path.write_text(json.dumps(content))
    vocabulary = Vocabulary.load(tmp_path / "saved")
    assert isinstance(vocabulary, TokenizersVocabulary)
    fast = AutoTokenizer.from_pretrained(tmp_path / "saved")
    texts = ["a sentence, number 3", "Another"]
    assert vocabulary.encode_batch(texts) == [fast(text, add_special_tokens=False)["input_ids"] for text in texts]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model_type": "bpe"}, "a BPE model; only UNIGRAM models are supported"),
        ({"model_type": "word"}, "a WORD model"),
        ({"model_type": "char", "vocab_size": 40}, "a CHAR model"),
        ({"add_dummy_prefix": False}, "add_dummy_prefix"),
        ({"remove_extra_whitespaces": False}, "remove_extra_whitespaces"),
        ({"treat_whitespace_as_suffix": True}, "the word mark after words"),
    ],
)
def test_other_kinds_of_spiece_model_are_rejected(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    train_elsewhere(tmp_path, **{"vocab_size": 100, **ALBERT_OPTIONS, **options})
    with pytest.raises(CheckpointError, match=message) as raised:
        Vocabulary.load(tmp_path)
    assert "\n" not in raised.value.message and "tokenizer.json" in str(raised.value.hint)


@pytest.mark.parametrize("added", [[], ["covidxyz"]])
def test_load_vocabulary_of_transformers_albert_equals_it(added: list[str], tmp_path: Path) -> None:
    """transformers replaces `` and '' by a quotation mark, which the `spiece.model` next to its file does not do."""
    train_elsewhere(tmp_path, vocab_size=100, required_chars="`'\"", **ALBERT_OPTIONS)
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(added)
    tokenizer.save_pretrained(tmp_path)
    vocabulary = Vocabulary.load(tmp_path)
    fast = AutoTokenizer.from_pretrained(tmp_path)
    assert vocabulary.size == len(fast) == 100 + len(added)
    assert isinstance(vocabulary, SentencePieceVocabulary) == (not added)
    for text in ("``Sentence 3''", "a covidxyz", *lines_of_eight_languages(80)):
        assert vocabulary.encode(text) == fast(text, add_special_tokens=False)["input_ids"]


def test_load_vocabulary_unigram_marker_equals_transformers(tmp_path: Path) -> None:
    train_elsewhere(tmp_path, vocab_size=100, user_defined_symbols=["[E1]"], **ALBERT_OPTIONS)
    tokenizer = AlbertTokenizer.from_pretrained(tmp_path)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E1]"]})
    tokenizer.save_pretrained(tmp_path)
    fast = AutoTokenizer.from_pretrained(tmp_path)
    vocabulary = Vocabulary.load(tmp_path)
    assert vocabulary.size == len(fast) == 100
    for text in ("sentence [E1] 3", "[E1]", "a[E1]b"):
        assert vocabulary.encode(text) == fast(text, add_special_tokens=False)["input_ids"]


def test_load_vocabulary_spiece_model_with_added_tokens_raises(tmp_path: Path) -> None:
    """The remedy, which saves a tokenizer.json, works."""
    train_elsewhere(tmp_path, vocab_size=100, **ALBERT_OPTIONS)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "albert"}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": 4}))
    assert Vocabulary.load(tmp_path).size == 100
    (tmp_path / "added_tokens.json").write_text(json.dumps({"covidxyz": 100}))
    with pytest.raises(CheckpointError, match=r"spiece\.model: .* 'covidxyz'") as raised:
        Vocabulary.load(tmp_path)
    code = str(raised.value.hint).partition(": ")[2]
    exec(code, {"AutoTokenizer": AutoTokenizer})
    vocabulary = Vocabulary.load(tmp_path)
    fast = AutoTokenizer.from_pretrained(tmp_path)
    assert vocabulary.size == 101
    assert vocabulary.encode("a covidxyz") == fast("a covidxyz", add_special_tokens=False)["input_ids"]


def test_load_vocabulary_equal_files_use_sentencepiece(vocabulary_dir: Path, tmp_path: Path) -> None:
    for name in ("spiece.model", "tokenizer.json"):
        shutil.copy(vocabulary_dir / name, tmp_path)
    assert isinstance(Vocabulary.load(tmp_path), SentencePieceVocabulary)


@pytest.mark.parametrize("rule", ["nmt_nfkc", "nfkc", "nfkc_cf", "nmt_nfkc_cf", "identity"])
def test_normalizers_of_other_programs_give_equal_ids(rule: str, tmp_path: Path) -> None:
    train_elsewhere(tmp_path, vocab_size=100, normalization_rule_name=rule, **ALBERT_OPTIONS)
    vocabulary = Vocabulary.load(tmp_path)
    (tmp_path / "out").mkdir()
    vocabulary.copy_to(tmp_path / "out")
    fast = AutoTokenizer.from_pretrained(tmp_path / "out")
    lines = lines_of_eight_languages(800)
    assert fast(lines, add_special_tokens=False)["input_ids"] == vocabulary.encode_batch(lines)


@pytest.mark.parametrize(
    ("files", "content", "remedy"),
    [
        (("vocab.json", "merges.txt"), "only vocab.json and merges.txt", "ByteLevelBPETokenizer"),
        (("vocab.json", "merges.txt", "config.json"), "only vocab.json and merges.txt", "AutoTokenizer"),
        (("tokenizer.model",), "only tokenizer.model", "copy the model's config.json"),
        (
            ("tokenizer_config.json",),
            "only tokenizer_config.json",
            "copy one of these three files next to tokenizer_config.json",
        ),
        ((), "no spiece.model, tokenizer.json or vocab.txt", "with its tokenizer"),
    ],
)
def test_load_vocabulary_without_tokens_names_what_is_there(
    files: tuple[str, ...], content: str, remedy: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(CheckpointError, match=content) as raised:
        Vocabulary.load(tmp_path)
    assert remedy in str(raised.value.hint)


@pytest.mark.parametrize("kind", [ByteLevelBPETokenizer, CharBPETokenizer])
def test_load_vocabulary_remedy_for_merges_works(kind: Any, tmp_path: Path) -> None:
    names = ["<s>", "</s>", "<unk>", "<pad>", "<mask>"]
    tokenizer = kind()
    lines = lines_of_eight_languages(800)
    tokenizer.train_from_iterator(lines, vocab_size=600, special_tokens=names, show_progress=False)
    tokenizer.save_model(str(tmp_path))
    with pytest.raises(CheckpointError) as raised:
        Vocabulary.load(tmp_path)
    code = str(raised.value.hint).partition(": ")[2]
    subprocess.run([sys.executable, "-c", f"from tokenizers import *; {code}"], check=True)
    vocabulary = Vocabulary.load(tmp_path)
    expected = [tokenizer.encode(line, add_special_tokens=False).ids for line in lines[:50]]
    assert vocabulary.encode_batch(lines[:50]) == expected


def test_load_vocabulary_of_a_file_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is a file, not a directory") as raised:
        Vocabulary.load(tmp_path / "tokenizer.json")
    assert str(tmp_path) in str(raised.value.hint)


@pytest.mark.parametrize("name", ["spiece.model", "tokenizer_config.json"])
def test_missing_file_of_a_vocabulary_is_an_error(name: str, vocabulary_dir: Path, tmp_path: Path) -> None:
    directory = tmp_path / "vocabulary"
    shutil.copytree(vocabulary_dir, directory)
    (directory / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: no such file"):
        Vocabulary.load(directory)


def test_vocabulary_without_its_last_files_is_rejected(vocabulary_dir: Path, tmp_path: Path) -> None:
    """`albert vocab` was killed after it had moved the first files of the vocabulary to their place."""
    directory = tmp_path / "vocabulary"
    shutil.copytree(vocabulary_dir, directory)
    for name in ("tokenizer_config.json", "vocabulary.json", "manifest.json"):
        (directory / name).unlink()
    (directory / "request.json").write_text("{}")
    with pytest.raises(CheckpointError, match="the vocabulary is unfinished"):
        Vocabulary.load(directory)
