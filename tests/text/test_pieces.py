"""The tokens that begin a word, for each way in which a `tokenizer.json` shows where words begin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from tokenizers import CharBPETokenizer, Tokenizer, models, pre_tokenizers, trainers

from albert_cli.data.build import build_data
from albert_cli.data.describe import token_texts
from albert_cli.data.masking import select_spans
from albert_cli.data.pairs import PackedSequences, PairSettings
from albert_cli.data.records import BuildSettings
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.languages import sentences
from tests.helpers.tokenizers import BERT_ROLES

SPECIAL: Final = list(BERT_ROLES.values())
LINES: Final = sentences("german")


def train(model: Any, trainer: Any, pre_tokenizer: Any) -> Any:
    """Train a tokenizer of the `tokenizers` library on German sentences."""
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def train_bpe(pre_tokenizer: Any, **options: Any) -> Any:
    trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=SPECIAL, show_progress=False, **options)
    return train(models.BPE(unk_token="[UNK]", **options), trainer, pre_tokenizer)


def train_char_bpe() -> Any:
    tokenizer = CharBPETokenizer(unk_token="[UNK]")
    tokenizer.train_from_iterator(LINES, vocab_size=90, special_tokens=SPECIAL, show_progress=False)
    return tokenizer


def train_word_level(size: int = 200) -> Any:
    trainer = trainers.WordLevelTrainer(vocab_size=size, special_tokens=SPECIAL, show_progress=False)
    return train(models.WordLevel(unk_token="[UNK]"), trainer, pre_tokenizers.Whitespace())


FAMILIES: Final[dict[str, Callable[[], Any]]] = {
    "BPE": lambda: train_bpe(pre_tokenizers.Whitespace()),
    "BPE with ##": lambda: train_bpe(pre_tokenizers.Whitespace(), continuing_subword_prefix="##"),
    "BPE with </w>": train_char_bpe,
    "BPE with ▁": lambda: train_bpe(pre_tokenizers.Metaspace()),
    "byte-level BPE": lambda: train_bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "byte-level BPE without spaces": lambda: train_bpe(
        pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    ),
    "WordLevel": train_word_level,
    "WordLevel with unknown words": lambda: train_word_level(12),
}
UNMARKED: Final = ("BPE", "byte-level BPE without spaces")


def save_and_load(tokenizer: Any, directory: Path) -> Vocabulary:
    tokenizer.save(str(directory / "tokenizer.json"))
    return Vocabulary.load(directory)


@pytest.mark.parametrize("family", FAMILIES)
def test_masked_share_of_every_family_is_the_setting(family: str, tmp_path: Path) -> None:
    vocabulary = save_and_load(FAMILIES[family](), tmp_path)
    ids = [index for line in LINES[:2000] for index in vocabulary.encode(line)]
    contents = [ids[start : start + 100] for start in range(0, len(ids) - 99, 100)]
    packed = np.array([[vocabulary.cls_id, *content, vocabulary.sep_id] for content in contents], np.int32)
    sequences = PackedSequences(
        ids=packed.ravel(),
        segment_ids=np.zeros(packed.size, np.int32),
        is_special=np.tile([True, *[False] * 100, True], len(packed)),
        offsets=np.arange(len(packed) + 1) * 102,
    )
    spans = select_spans(sequences, vocabulary, PairSettings(), 0, np.arange(len(packed)))
    assert len(spans.positions()) / packed.size == pytest.approx(0.15, abs=0.01)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in UNMARKED])
def test_word_boundaries_of_marked_words_are_the_words(family: str, tmp_path: Path) -> None:
    vocabulary = save_and_load(FAMILIES[family](), tmp_path)
    assert vocabulary.marks_words
    for line in LINES[::400]:
        text = " ".join(line.rstrip(".").split())
        ids = np.array([vocabulary.cls_id, *vocabulary.encode(text), vocabulary.sep_id])
        is_start = vocabulary.word_boundaries().find_starts(ids)
        assert is_start[1:-1].sum() == len(text.split()), text


@pytest.mark.parametrize("family", [family for family in FAMILIES if "unknown" not in family])
def test_token_texts_of_marked_words_are_separated(family: str, tmp_path: Path) -> None:
    vocabulary = save_and_load(FAMILIES[family](), tmp_path)
    line = LINES[0].rstrip(".")
    texts = token_texts(vocabulary)
    shown = "".join(texts[index] for index in vocabulary.encode(line)).split()
    if family in UNMARKED:
        assert len(shown) > len(line.split())
    else:
        assert shown == line.split()


@pytest.mark.parametrize("family", UNMARKED)
def test_word_boundaries_without_marks_begin_at_every_token(family: str, tmp_path: Path) -> None:
    vocabulary = save_and_load(FAMILIES[family](), tmp_path)
    assert not vocabulary.marks_words
    assert vocabulary.word_boundaries().find_starts(np.array(vocabulary.encode(LINES[0]))).all()


@pytest.mark.parametrize(("family", "warnings"), [("BPE", 1), ("WordLevel", 0)])
def test_build_data_warns_once_about_unmarked_words(
    family: str, warnings: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_and_load(FAMILIES[family](), tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(LINES[:200]), encoding="utf-8")
    build_data([str(tmp_path / "text.txt")], tmp_path, tmp_path / "data", BuildSettings(holdout=0.0), workers=2)
    assert capsys.readouterr().err.count("where words begin") == warnings
