"""A source's weight says how often a pass uses its documents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from albert_cli.data.pairs import NO_LABEL, PairSettings, sample_pairs
from albert_cli.data.records import BuildSettings
from albert_cli.data.shards import TokenCorpus
from tests.helpers.data_directories import TENTH_HELD_OUT, WriteFiles, build, document_set, iter_documents


def test_weight_repeats_shards_without_copying_them(
    small_vocabulary: Path, write_files: WriteFiles, tmp_path: Path
) -> None:
    (path,) = write_files(1)
    once = tmp_path / "once"
    more = tmp_path / "more"
    build([path], small_vocabulary, once, TENTH_HELD_OUT, workers=1)
    report = build([f"{path}@2.5"], small_vocabulary, more, TENTH_HELD_OUT, workers=1)
    corpus = TokenCorpus.open(more)
    single = TokenCorpus.open(once)
    times = Counter(document for shard in corpus.shards for document in iter_documents(shard))
    assert set(times) == {document for shard in single.shards for document in iter_documents(shard)}
    assert set(times.values()) == {2, 3}
    sentences = [sentence for document in times.elements() for sentence in document]
    tokens = [token for sentence in sentences for token in sentence]
    assert report.facts.totals["train"].tokens == corpus.n_tokens == len(tokens)
    assert 2.3 < corpus.n_tokens / single.n_tokens < 2.7
    assert np.array_equal(corpus.unigram_counts(), np.bincount(tokens, minlength=300))
    assert document_set(more, "heldout") == document_set(once, "heldout")
    stored = [sum(f.stat().st_size for f in directory.glob("shards/*/*.ids")) for directory in (once, more)]
    assert stored[0] == stored[1]


@pytest.mark.parametrize("weight", ["@2", "@2.5"])
def test_nsp_takes_no_segment_from_a_copy_of_the_document(weight: str, small_vocabulary: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.txt" for name in ("one", "two", "three")]
    for path in paths:
        path.write_text("\n".join(f"Sentence {number} of the text in {path.stem}." for number in range(80)))
    sources = [f"{paths[0]}{weight}", f"{paths[1]}{weight}", str(paths[2])]
    build(sources, small_vocabulary, tmp_path / "data", BuildSettings(holdout=0), workers=1)
    corpus = TokenCorpus.open(tmp_path / "data")
    assert corpus.n_documents > corpus.n_distinct_documents == 3
    pairs = sample_pairs(corpus, np.arange(400), PairSettings(64, sentence_loss="nsp"), 0)
    texts = [[read_document(corpus, start) for start in starts] for starts in (pairs.a.start, pairs.b.start)]
    is_away = [first != second for first, second in zip(*texts, strict=True)]
    assert is_away == (pairs.order_labels == 1).tolist()
    assert 0.4 < np.mean(is_away) < 0.6
    assert len(set(zip(*texts, strict=True))) == 9, "every document is the other document of each of the other two"


def test_nsp_on_copies_of_one_document_has_no_labels(small_vocabulary: Path, tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("\n".join(f"Sentence {number} of the text." for number in range(80)))
    build([f"{path}@2"], small_vocabulary, tmp_path / "data", BuildSettings(holdout=0), workers=1)
    pairs = sample_pairs(TokenCorpus.open(tmp_path / "data"), np.arange(50), PairSettings(64, sentence_loss="nsp"), 0)
    assert (pairs.order_labels == NO_LABEL).all()


def read_document(corpus: TokenCorpus, position: int) -> tuple[int, ...]:
    """Return the ids of the document at a global token position, from its first sentence on."""
    shard_number = int(np.searchsorted(corpus.token_starts, position, "right")) - 1
    shard = corpus.shards[shard_number]
    starts = shard.sentence_offsets[shard.document_offsets].astype(int)
    number = int(np.searchsorted(starts, position - corpus.token_starts[shard_number], "right")) - 1
    return tuple(shard.ids[starts[number] : starts[number + 1]].tolist())


def test_weight_below_one_leaves_documents_out(small_vocabulary: Path, write_files: WriteFiles, tmp_path: Path) -> None:
    (path,) = write_files(1)
    build([path], small_vocabulary, tmp_path / "1", TENTH_HELD_OUT, workers=1)
    build([f"{path}@0.4"], small_vocabulary, tmp_path / "0.4", TENTH_HELD_OUT, workers=1)
    some = document_set(tmp_path / "0.4", "train")
    every = document_set(tmp_path / "1", "train")
    assert some < every
    assert 0.3 < len(some) / len(every) < 0.5
