"""A source's weight says how often a pass uses its documents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

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


def test_weight_below_one_leaves_documents_out(small_vocabulary: Path, write_files: WriteFiles, tmp_path: Path) -> None:
    (path,) = write_files(1)
    build([path], small_vocabulary, tmp_path / "1", TENTH_HELD_OUT, workers=1)
    build([f"{path}@0.4"], small_vocabulary, tmp_path / "0.4", TENTH_HELD_OUT, workers=1)
    some = document_set(tmp_path / "0.4", "train")
    every = document_set(tmp_path / "1", "train")
    assert some < every
    assert 0.3 < len(some) / len(every) < 0.5
