"""Pairs and masks against the released generator's procedure (tests/data/reference.py), by chi-square tests.

Equal within sampling error, tested here: the short targets of a draw, the order labels, how many sentences
stand in A, the lengths after truncation, words a span, pieces a span, positions masked, what they become.

Different on purpose, each with a test here or in the module named:
- a target length is drawn for every sequence; the generator draws one a document and pass, so that with it
  more than 10 % of the sequences are short, and all of a document's are;
- a document of one sentence gives one segment without a label; the generator adds a random document and
  labels it as swapped;
- a sequence at the end of its document grows backwards (test_pairs); the generator leaves a short remainder;
- a chunk is never one long sentence where the document has another (test_pairs);
- sequences start at random tokens, the same number a pass everywhere (test_pairs), so a document shorter than
  a sequence is drawn in proportion to its length unless `short_documents` is "once"; the generator visits every
  document once a pass;
- truncation takes a uniform share from the front (test_pairs), the generator a coin's; the lengths agree;
- a next-sentence negative is always from another document (test_pairs); its unused sentences come in other
  passes, where the generator puts them back;
- spans never cross a [SEP] and B's first piece begins a word; the generator's do, and it glues;
- 15 % of the positions are masked by default; the generator's cap of 20 is `max_predictions`;
- random pieces are ordinary ones; the generator also draws control symbols;
- every choice is a hash of (seed, stream, index); the generator's n-gram lengths are not seeded.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, chisquare

from albert_cli.data.batches import pack_pairs
from albert_cli.data.masking import mask_batch, select_spans
from albert_cli.data.pairs import PairSettings, sample_pairs
from albert_cli.data.shards import TokenCorpus
from tests.data import reference
from tests.data.reference import Document, Instance, ReferenceMasked
from tests.data.synthetic import FakeVocabulary, numbered_corpus, text_like_corpus

VOCABULARY = FakeVocabulary()


def documents_of(corpus: TokenCorpus) -> list[Document]:
    """A corpus in the reference's form."""
    found = []
    for shard in corpus.shards:
        ids, sentences = shard.ids.tolist(), shard.sentences.tolist()
        bounds = itertools.pairwise(shard.documents.tolist())
        found += [[ids[sentences[i] : sentences[i + 1]] for i in range(a, b)] for a, b in bounds]
    return found


def assert_agree(ours: Sequence[int] | NDArray[np.int64], theirs: Sequence[int], least: int = 10) -> None:
    """Whether two lists of counts come from one distribution; classes rarer than `least` are put together."""
    table = np.array([list(ours), list(theirs)], dtype=np.int64)
    rare = table.sum(0) < least
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(1)])
    assert chi2_contingency(table[:, table.sum(0) > 0]).pvalue > 1e-3, table


def histogram(values: Sequence[int] | NDArray[Any], size: int) -> NDArray[np.int64]:
    return np.bincount(values, minlength=size)


# ---------------------------------------------------------------- pairs


def test_short_targets_are_as_frequent_and_as_long_as_a_draw_of_the_generator() -> None:
    corpus = numbered_corpus([[[1] * 5000]])  # sentences of one piece: the length is the target
    pairs = sample_pairs(corpus, np.arange(30_000), PairSettings(128), 0)
    ours = pairs.a_stop - pairs.a_start + pairs.b_stop - pairs.b_start
    rng = random.Random(1)
    theirs = [reference.sample_target(125, 0.1, rng) for _ in range(30_000)]
    assert_agree(histogram(ours, 126), histogram(theirs, 126).tolist())


def test_the_generator_makes_more_sequences_short_than_one_in_ten() -> None:
    made = reference.iter_instances([[[1]] * 1250] * 160, 128, 0.1, False, random.Random(2))
    full = sum(len(i.a) + len(i.b) == 125 for i in made)
    assert full / len(made) < 0.85, "one document in ten is short, and gives more sequences than the others"


@pytest.fixture(scope="module")
def corpus() -> TokenCorpus:
    return text_like_corpus(600, seed=3)


def their_pairs(corpus: TokenCorpus, next_sentence: bool, short: float = 0.0) -> list[Instance]:
    return reference.iter_instances(documents_of(corpus), 128, short, next_sentence, random.Random(4))


@pytest.mark.parametrize("loss", ["sop", "nsp"])
def test_order_labels_are_balanced_alike(loss: str, corpus: TokenCorpus) -> None:
    pairs = sample_pairs(corpus, np.arange(3000), PairSettings(128, sentence_loss=loss), 0)  # type: ignore[arg-type]
    theirs = [i.label for i in their_pairs(corpus, loss == "nsp") if i.sentences > 1]
    assert (pairs.order_labels >= 0).all(), "every document of this corpus has two sentences"
    assert_agree(histogram(pairs.order_labels, 2), histogram(theirs, 2).tolist())


def test_only_the_generator_labels_a_lone_sentence() -> None:
    documents = [[[7] * 40] for _ in range(50)]
    theirs = reference.iter_instances(documents, 128, 0.0, False, random.Random(5))
    assert {i.label for i in theirs} == {1} and all(i.b for i in theirs)
    ours = sample_pairs(numbered_corpus([[[40]] * 50]), np.arange(50), PairSettings(128), 0)
    assert (ours.order_labels == -1).all() and (ours.b_start == ours.b_stop).all()


def test_the_segments_share_sentences_alike() -> None:
    # Sentences of five pieces: 25 to a chunk of 125, for both.
    corpus = numbered_corpus([[[5] * 5000]])
    theirs = []
    for number in range(10):
        made = reference.iter_instances(documents_of(corpus), 128, 0.0, False, random.Random(number))
        theirs += [i.a_sentences for i in made if i.sentences == 25]
    pairs = sample_pairs(corpus, np.arange(2000), PairSettings(128, 0, "none"), 0)
    ours = (pairs.a_stop - pairs.a_start) // 5
    assert_agree(histogram(ours, 25), histogram(theirs, 25).tolist())


def test_segments_are_as_long_after_truncation() -> None:
    corpus = numbered_corpus([[[40, 30] * 3000]])  # chunks of 140 or 150 pieces, cut to 125
    theirs = their_pairs(corpus, False)
    pairs = sample_pairs(corpus, np.arange(3000), PairSettings(128, 0), 0)
    ours = np.stack([pairs.a_stop - pairs.a_start, pairs.b_stop - pairs.b_start], 1)
    assert {tuple(pair) for pair in ours.tolist()} == {(len(i.a), len(i.b)) for i in theirs[:-1]}


# ---------------------------------------------------------------- masks


@pytest.fixture(scope="module", params=[(128, 0), (512, 20)], ids=["15 %", "cap of 20"])
def both(request: pytest.FixtureRequest) -> tuple[PairSettings, list[ReferenceMasked], dict[str, NDArray[np.int64]]]:
    """The same sequences masked by the generator's procedure and by the product."""
    length, most = request.param
    settings = PairSettings(length, max_predictions=most)
    index = np.arange(500)
    corpus = text_like_corpus(400)
    ids, special, _, offsets = pack_pairs(corpus, sample_pairs(corpus, index, settings, 0), 2, 3)
    rng = random.Random(6)
    theirs = []
    for start, stop in itertools.pairwise(offsets):
        own = slice(int(start), int(stop))
        starts = VOCABULARY.is_word_start[ids[own]].tolist()
        theirs.append(
            reference.mask(
                ids[own].tolist(), starts, special[own].tolist(), size=VOCABULARY.size, mask_id=4, rng=rng,
                most=most or length,
            )
        )  # fmt: skip
    changed, _, _ = mask_batch(ids, special, offsets, VOCABULARY, settings, 0, index)
    spans = select_spans(ids, special, offsets, VOCABULARY, settings, 0, index)
    masked = spans.positions()
    ours = {
        "words": spans.words[~spans.shortened],
        "masked": masked,
        "became": changed[masked].astype(np.int64),
        "was": ids[masked].astype(np.int64),
        "positions": np.array([ids.size]),
    }
    return settings, theirs, ours


Both = tuple[PairSettings, list[ReferenceMasked], dict[str, NDArray[np.int64]]]


def test_spans_have_as_many_words(both: Both) -> None:
    _, theirs, ours = both
    complete = [n for m in theirs for drawn, n, crosses in m.spans if drawn == n and not crosses]
    assert_agree(histogram(ours["words"], 4), histogram(complete, 4).tolist())


def test_as_many_positions_are_masked(both: Both) -> None:
    _, theirs, ours = both
    total, count = int(ours["positions"][0]), sum(len(m.labels) for m in theirs)
    assert_agree([ours["masked"].size, total - ours["masked"].size], [count, total - count])


def test_pieces_become_masks_stay_or_change_alike(both: Both) -> None:
    _, theirs, ours = both
    fates = [
        0 if m.ids[p] == VOCABULARY.mask_id else 1 if m.ids[p] == was else 2
        for m in theirs
        for p, was in m.labels.items()
    ]
    own = np.where(ours["became"] == VOCABULARY.mask_id, 0, np.where(ours["became"] == ours["was"], 1, 2))
    assert_agree(histogram(own, 3), histogram(fates, 3).tolist())
    assert chisquare(histogram(own, 3), np.array([0.8, 0.1, 0.1]) * own.size).pvalue > 1e-3


def test_only_the_generator_crosses_a_separator(both: Both) -> None:
    _, theirs, _ = both
    assert any(crosses for m in theirs for _, _, crosses in m.spans)


def test_fifteen_per_cent_of_the_positions_are_masked_or_twenty_of_a_sequence(both: Both) -> None:
    settings, _, ours = both
    if settings.max_predictions:
        assert ours["masked"].size / 500 == pytest.approx(20, abs=0.4)
    else:
        assert ours["masked"].size / int(ours["positions"][0]) == pytest.approx(0.15, abs=0.002)
