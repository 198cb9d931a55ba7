from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from albert_cli.data.batches import original_ids, sample_batch
from albert_cli.data.describe import DecodedExample, TextRun, decode_examples, format_example, token_texts
from albert_cli.data.pairs import PairSettings
from albert_cli.data.shards import TokenCorpus
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.corpora import FakeVocabulary, text_like_corpus
from tests.helpers.tokenizers import KINDS


def test_decode_examples_gives_the_text_of_the_batch(tiny_data: Path) -> None:
    corpus = TokenCorpus.open(tiny_data)
    vocabulary = Vocabulary.load(tiny_data / "vocabulary")
    packed = sample_batch(corpus, vocabulary, PairSettings(max_seq_length=64), 0, np.arange(20))
    ids = original_ids(packed)
    for row, example in enumerate(decode_examples(packed, token_texts(vocabulary), range(20))):
        window = slice(int(packed.offsets[row]), int(packed.offsets[row + 1]))
        text = " ".join("".join(run.text for run in runs) for runs in example.segments)
        ordinary = [i for i in ids[window].tolist() if i in vocabulary.ordinary_ids]
        assert text.split() == vocabulary.decode(ordinary).split() or packed.segment_ids[window].any()
        assert text.replace(" ", "") == vocabulary.decode(ordinary).replace(" ", "")
        seen = "".join(run.seen for runs in example.segments for run in runs if run.seen is not None)
        is_inside = (packed.masked_index >= window.start) & (packed.masked_index < window.stop)
        shown = "".join(vocabulary.pieces[i] for i in packed.ids[packed.masked_index[is_inside]].tolist())
        assert seen == shown.replace("▁", " ")


def test_decode_examples_replaces_control_characters() -> None:
    corpus = text_like_corpus(20, size=9)
    pieces = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "\x1b[31m", "a\nb", "▁c", "d"]
    vocabulary = FakeVocabulary(size=9, is_word_start=np.ones(9, bool), pieces=pieces)
    packed = sample_batch(corpus, vocabulary, PairSettings(max_seq_length=32), 0, np.arange(2))
    shown = json.dumps([asdict(example) for example in decode_examples(packed, token_texts(vocabulary), [0, 1])])
    assert "\\u001b" not in shown
    assert "\\n" not in shown


@pytest.mark.parametrize("kind", ["WordPiece", "byte-level BPE"])
def test_token_texts_of_other_tokenizers_are_readable(kind: str, tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(KINDS[kind](tmp_path / "vocabulary"))
    texts = token_texts(vocabulary)
    sentence = " die größten häuser der städte"
    shown = "".join(texts[index] for index in vocabulary.encode(sentence))
    assert shown == " " + vocabulary.decode(vocabulary.encode(sentence))
    masked_run = TextRun(" die", seen=texts[vocabulary.mask_id])
    example = DecodedExample(index=0, positions=3, order_label=0, segments=[[masked_run], []])
    assert format_example(example, "sop")[1].endswith("[die]"), "no other input than the mask is shown"


@pytest.mark.parametrize("is_colored", [True, False])
def test_format_example_fits_a_terminal(is_colored: bool, tiny_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if not is_colored:
        monkeypatch.setenv("NO_COLOR", "1")
    vocabulary = Vocabulary.load(tiny_data / "vocabulary")
    packed = sample_batch(TokenCorpus.open(tiny_data), vocabulary, PairSettings(), 0, np.arange(2))
    examples = decode_examples(packed, token_texts(vocabulary), range(2))
    lines = [line for example in examples for line in format_example(example, "sop")]
    assert ("\x1b[" in "\n".join(lines)) == is_colored
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert len(plain) > 10 and max(map(len, plain)) <= 80
    assert re.search(r" \[\S", "\n".join(plain)), "the brackets are shown with and without color"
