"""The same ids from `spiece.model` and from `tokenizer.json`, on real lines and in other scripts.

Few lines have different ids, and each of them differs for a known reason. With `ALBERT_TEST_VOCABULARY` set to
a vocabulary's directory the English lines are tried on that one, instead of one that is trained here:

    ALBERT_TEST_VOCABULARY=vocabulary pytest -n 0 -s tests/text/test_parity.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor

from albert_cli import store
from albert_cli.text import build_vocabulary
from albert_cli.text.build_vocabulary import VocabularySettings
from albert_cli.text.clean import Cleaning, clean
from albert_cli.text.corpus import read_documents
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.sentences import split_sentences
from albert_cli.text.unigram import SPECIAL_TOKENS
from tests.helpers.languages import LANGUAGES, sentences
from tests.helpers.vocabularies import load_sentencepiece

KEEP_ALL = Cleaning(lowercase=False, strip_accents=False, normal_form="NFC")


# The columns of the texts in each task's dev table; CoLA has no header.
GLUE = {"CoLA": (3,), "SST-2": (0,), "MRPC": (3, 4), "STS-B": (7, 8), "QNLI": (1, 2), "RTE": (1, 2), "WNLI": (1, 2)}


def glue_lines(folder: Path) -> list[str]:
    """Return every text of every dev table."""
    texts = []
    for task, columns in GLUE.items():
        rows = (folder / task / "dev.tsv").read_text("utf-8-sig").rstrip("\n").split("\n")
        first = 0 if task == "CoLA" else 1  # CoLA has no header
        texts += [row.split("\t")[column] for row in rows[first:] for column in columns]
    return texts


def explain(v: SentencePieceVocabulary, text: str, ours: list[int], theirs: list[int]) -> str:
    """Return the known reason why the ids of a text differ, or "unexplained"."""
    if any(token in text for token in SPECIAL_TOKENS.values()):
        return "a literal special token"
    scores = [sum(v.proto.pieces[i].score for i in ids) for ids in (ours, theirs)]
    joined = ["".join(v.pieces[i] for i in ids) for ids in (ours, theirs)]
    if joined[0] == joined[1] and abs(scores[0] - scores[1]) < 1e-3:
        return "two segmentations of equal score"
    return "unexplained"


def differences(directory: Path, texts: Iterable[str]) -> Counter[str]:
    """Count, by reason, the texts whose ids differ between `AutoTokenizer` and the bare `spiece.model` after `clean`.

    Also assert that `SentencePieceVocabulary.encode_batch` gives the same ids as the bare model.
    """
    from transformers import AutoTokenizer

    texts = list(texts)
    v = load_sentencepiece(directory)
    fast = AutoTokenizer.from_pretrained(directory)
    bare = SentencePieceProcessor(model_file=str(directory / "spiece.model"))
    expected = bare.encode([clean(text, v.cleaning) for text in texts])
    assert v.encode_batch(texts) == expected
    reasons: Counter[str] = Counter()
    for text, ours, theirs in zip(texts, expected, fast(texts, add_special_tokens=False)["input_ids"], strict=True):
        if ours != theirs:
            reason = explain(v, text, ours, theirs)
            reasons[reason] += 1
            print(f"{reason}: {text!r}\n  {[v.pieces[i] for i in ours]}\n  {[v.pieces[i] for i in theirs]}")
    print(f"{len(texts) - reasons.total():,} of {len(texts):,} lines equal; {dict(reasons)}")
    return reasons


@pytest.fixture(scope="module")
def english(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    if named := os.environ.get("ALBERT_TEST_VOCABULARY"):
        return Path(named)
    folder = tmp_path_factory.mktemp("parity")
    with (shared_data / "corpus" / "enwiki-small.jsonl").open(encoding="utf-8") as corpus:
        (folder / "articles.jsonl").write_text("".join(islice(corpus, 100)), encoding="utf-8")
    settings = VocabularySettings(2000, sample_size=2500)
    build_vocabulary.build_vocabulary([str(folder / "articles.jsonl")], folder / "vocabulary", settings)
    return folder / "vocabulary"


def test_ids_of_unseen_wikipedia_sentences_are_equal(english: Path, shared_data: Path) -> None:
    documents = read_documents([str(shared_data / "corpus" / "enwiki-2014-03.jsonl.xz")])
    texts = list(islice((s for d in documents for s in split_sentences(d.text)), 1000))
    assert len(texts) == 1000
    reasons = differences(english, texts)
    assert reasons.total() <= 1
    assert not reasons["unexplained"]


def test_ids_of_glue_dev_lines_are_equal(english: Path, shared_data: Path) -> None:
    all_texts = glue_lines(shared_data / "glue")
    # CoLA and SST-2 have one text per row; MRPC, STS-B, QNLI, RTE and WNLI have two.
    assert len(all_texts) == 1043 + 872 + 2 * (408 + 1500 + 5463 + 277 + 71)
    texts = all_texts[::4]
    reasons = differences(english, texts)
    assert reasons.total() <= len(texts) / 1000
    assert not reasons["unexplained"]


@pytest.mark.parametrize("cleaning", [Cleaning(), KEEP_ALL], ids=["paper", "keep all"])
def test_ids_of_other_scripts_are_equal(tmp_path: Path, cleaning: Cleaning) -> None:
    """Compare 143 sentences of each of eight languages in seven scripts."""
    for language in LANGUAGES:
        (tmp_path / f"{language}.txt").write_text("\n".join(sentences(language)[::3]), encoding="utf-8")
    build_vocabulary.build_vocabulary([str(tmp_path)], tmp_path / "out", VocabularySettings(600, cleaning))
    assert store.read_json(tmp_path / "out" / "vocabulary.json")["tokens"]["unknown_rate"] < 0.001
    for language in LANGUAGES:
        # These contain every phrase, because 7 and the number of sentences, 1,000, have no common factor.
        texts = sentences(language)[::7]
        assert len(texts) == 143
        assert not differences(tmp_path / "out", texts), language
