"""Compare pairs and masks with the released generator's procedure (`reference_generator`) by chi-square tests.

Equal within sampling error, tested here: how often targets are short and how long they are, order labels, sentences in
A, lengths after truncation, words and tokens per span, positions masked, what masked tokens become.

Different on purpose, each with a test here or in the module in parentheses:
- a target length is sampled for every sequence; the generator samples one per document and pass, so with it more than
  10 % of the sequences are short, and so are all of a document's;
- a document of one sentence gives one segment without a label; the generator adds a random document and labels the
  pair as swapped;
- a sequence grows in both directions (test_pairs); the generator leaves a short remainder at the end of a document;
- a chunk is never one long sentence if the document has another (test_pairs);
- sequences start at random tokens, the same number a pass everywhere (test_pairs), so a document shorter than a
  sequence is sampled in proportion to its length; the generator visits every document once a pass;
- truncation takes a uniform part from the front (test_pairs), the generator tosses coins; the lengths agree;
- a next-sentence negative is always from another document (test_pairs); its unused sentences come in other passes,
  while the generator puts them back;
- spans never cross a [SEP], and B's first token begins a word; the generator's spans cross it, and it joins the words;
- 15 % of the positions are masked by default; the generator's cap of 20 is `max_predictions`;
- random tokens are ordinary ones; the generator also samples control symbols;
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

from albert_cli.data.masking import mask_spans, select_spans
from albert_cli.data.pairs import PairSettings, SentenceLoss, pack_sequences, sample_pairs
from albert_cli.data.shards import TokenCorpus
from tests.helpers import reference_generator
from tests.helpers.corpora import FakeVocabulary, numbered_corpus, text_like_corpus
from tests.helpers.reference_generator import Document, Instance, ReferenceMasked

VOCABULARY = FakeVocabulary()


def documents_of(corpus: TokenCorpus) -> list[Document]:
    """Return a corpus as the reference's documents."""
    documents = []
    for shard in corpus.shards:
        ids = shard.ids.tolist()
        sentences = shard.sentence_offsets.tolist()
        bounds = itertools.pairwise(shard.document_offsets.tolist())
        documents += [[ids[sentences[i] : sentences[i + 1]] for i in range(a, b)] for a, b in bounds]
    return documents


def assert_agree(ours: Sequence[int] | NDArray[np.int64], theirs: Sequence[int], least: int = 10) -> None:
    """Check that two lists of counts come from one distribution; classes rarer than `least` are merged."""
    table = np.array([list(ours), list(theirs)], dtype=np.int64)
    rare = table.sum(0) < least
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(1)])
    assert chi2_contingency(table[:, table.sum(0) > 0]).pvalue > 1e-3, table


def histogram(values: Sequence[int] | NDArray[Any], size: int) -> NDArray[np.int64]:
    return np.bincount(values, minlength=size)


# ---------------------------------------------------------------- pairs


def test_target_lengths_match_the_generator() -> None:
    corpus = numbered_corpus([[[1] * 5000]])  # sentences of one piece: the length is the target
    pairs = sample_pairs(corpus, np.arange(30_000), PairSettings(128), 0)
    ours = pairs.a.length + pairs.b.length
    rng = random.Random(1)
    theirs = [reference_generator.sample_target(125, 0.1, rng) for _ in range(30_000)]
    assert_agree(histogram(ours, 126), histogram(theirs, 126).tolist())


def test_generator_shortens_more_than_one_in_ten() -> None:
    instances = reference_generator.make_instances([[[1]] * 1250] * 160, 128, 0.1, False, random.Random(2))
    full = sum(len(i.a) + len(i.b) == 125 for i in instances)
    assert full / len(instances) < 0.85, "one document in ten is short, and gives more sequences than the others"


@pytest.fixture(scope="module")
def corpus() -> TokenCorpus:
    return text_like_corpus(600, seed=3)


def their_pairs(corpus: TokenCorpus, next_sentence: bool) -> list[Instance]:
    return reference_generator.make_instances(documents_of(corpus), 128, 0.0, next_sentence, random.Random(4))


@pytest.mark.parametrize("loss", ["sop", "nsp"])
def test_order_labels_match_the_generator(loss: SentenceLoss, corpus: TokenCorpus) -> None:
    pairs = sample_pairs(corpus, np.arange(3000), PairSettings(128, sentence_loss=loss), 0)
    theirs = [i.label for i in their_pairs(corpus, loss == "nsp") if i.sentences > 1]
    assert (pairs.order_labels >= 0).all(), "every document of this corpus has two sentences"
    assert_agree(histogram(pairs.order_labels, 2), histogram(theirs, 2).tolist())


def test_lone_sentence_is_labeled_only_by_the_generator() -> None:
    documents = [[[7] * 40] for _ in range(50)]
    theirs = reference_generator.make_instances(documents, 128, 0.0, False, random.Random(5))
    assert {i.label for i in theirs} == {1} and all(i.b for i in theirs)
    ours = sample_pairs(numbered_corpus([[[40]] * 50]), np.arange(50), PairSettings(128), 0)
    assert (ours.order_labels == -1).all() and (ours.b.start == ours.b.stop).all()


def test_sentences_in_a_match_the_generator() -> None:
    # Sentences of five pieces: 25 to a chunk of 125, for both.
    corpus = numbered_corpus([[[5] * 5000]])
    theirs = []
    for number in range(10):
        instances = reference_generator.make_instances(documents_of(corpus), 128, 0.0, False, random.Random(number))
        theirs += [i.a_sentences for i in instances if i.sentences == 25]
    pairs = sample_pairs(corpus, np.arange(2000), PairSettings(128, 0, "none"), 0)
    ours = (pairs.a.stop - pairs.a.start) // 5
    assert_agree(histogram(ours, 25), histogram(theirs, 25).tolist())


def test_truncated_lengths_match_the_generator() -> None:
    corpus = numbered_corpus([[[40, 30] * 3000]])  # chunks of 140 or 150 pieces, cut to 125
    theirs = their_pairs(corpus, False)
    pairs = sample_pairs(corpus, np.arange(3000), PairSettings(128, 0), 0)
    ours = np.stack([pairs.a.stop - pairs.a.start, pairs.b.stop - pairs.b.start], 1)
    assert {tuple(pair) for pair in ours.tolist()} == {(len(i.a), len(i.b)) for i in theirs[:-1]}


# ---------------------------------------------------------------- masks


Both = tuple[PairSettings, list[ReferenceMasked], dict[str, NDArray[np.int64]]]


@pytest.fixture(scope="module", params=[(128, 0), (512, 20)], ids=["15 %", "cap of 20"])
def both(
    request: pytest.FixtureRequest,
) -> tuple[PairSettings, list[ReferenceMasked], dict[str, NDArray[np.int64]]]:
    """The same sequences masked by the generator's procedure and by the product."""
    length, max_predictions = request.param
    settings = PairSettings(length, max_predictions=max_predictions)
    index = np.arange(500)
    corpus = text_like_corpus(400)
    packed = pack_sequences(corpus, sample_pairs(corpus, index, settings, 0), 2, 3)
    rng = random.Random(6)
    theirs = []
    for start, stop in itertools.pairwise(packed.offsets):
        row = slice(int(start), int(stop))
        ids = packed.ids[row]
        theirs.append(
            reference_generator.mask(
                ids.tolist(), VOCABULARY.word_boundaries().starts[ids].tolist(), packed.is_special[row].tolist(),
                size=VOCABULARY.size, mask_id=4, rng=rng, max_predictions=max_predictions or length,
            )
        )  # fmt: skip
    spans = select_spans(packed, VOCABULARY, settings, 0, index)
    masked = mask_spans(packed, spans, VOCABULARY, 0, index)
    ours = {
        "words": spans.words[~spans.is_shortened],
        "masked": masked.index.astype(np.int64),
        "became": masked.ids[masked.index].astype(np.int64),
        "was": masked.labels.astype(np.int64),
        "positions": np.array([packed.ids.size]),
    }
    return settings, theirs, ours


def test_span_words_match_the_generator(both: Both) -> None:
    _, theirs, ours = both
    spans = [span for sequence in theirs for span in sequence.spans if not span.crosses_sep]
    complete = [span.masked_words for span in spans if span.masked_words == span.requested_words]
    assert_agree(histogram(ours["words"], 4), histogram(complete, 4).tolist())


def test_masked_positions_match_the_generator(both: Both) -> None:
    _, theirs, ours = both
    total = int(ours["positions"][0])
    count = sum(len(m.labels) for m in theirs)
    assert_agree([ours["masked"].size, total - ours["masked"].size], [count, total - count])


def count_fates(became: NDArray[np.int64], was: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count tokens that became [MASK], stayed, or changed: int64 [3]."""
    is_mask = became == VOCABULARY.mask_id
    is_unchanged = ~is_mask & (became == was)
    return np.array([is_mask.sum(), is_unchanged.sum(), (~is_mask & ~is_unchanged).sum()])


def test_token_replacements_match_the_generator(both: Both) -> None:
    _, theirs, ours = both
    their_was = np.array([was for m in theirs for was in m.labels.values()])
    their_became = np.array([m.ids[position] for m in theirs for position in m.labels])
    their_fates = count_fates(their_became, their_was)
    our_fates = count_fates(ours["became"], ours["was"])
    assert_agree(our_fates, their_fates.tolist())
    assert chisquare(our_fates, np.array([0.8, 0.1, 0.1]) * our_fates.sum()).pvalue > 1e-3


def test_separator_is_crossed_only_by_the_generator(both: Both) -> None:
    _, theirs, _ = both
    assert any(span.crosses_sep for sequence in theirs for span in sequence.spans)


def test_masked_positions_are_15_percent_or_capped(both: Both) -> None:
    settings, _, ours = both
    if settings.max_predictions:
        assert ours["masked"].size / 500 == pytest.approx(20, abs=0.4)
    else:
        assert ours["masked"].size / int(ours["positions"][0]) == pytest.approx(0.15, abs=0.002)
