"""The procedure of the paper's released data generator, with its peculiarities, written from its published description.

Tests compare the data package with this reference. It is slow and keeps everything in memory: documents are lists of
sentences, and sentences are lists of token ids. One random generator makes all choices, one at a time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

Sentence = list[int]
Document = list[Sentence]


@dataclass(frozen=True)
class Instance:
    """A pair of segments before masking.

    label: 1 if the segments are swapped or the second one is from another document, else 0; sentences: the number of
    sentences in the chunk that was split into the pair; a_sentences: the number of sentences in the first segment,
    before a swap.
    """

    a: Sentence
    b: Sentence
    label: int
    sentences: int
    a_sentences: int


class MaskedSpan(NamedTuple):
    """The numbers of words that were sampled for a span and that were masked; True if the span crosses a [SEP]."""

    requested_words: int
    masked_words: int
    crosses_sep: bool


@dataclass(frozen=True)
class ReferenceMasked:
    """A masked sequence; labels: the original id by masked position."""

    ids: list[int]
    labels: dict[int, int]
    spans: list[MaskedSpan]


def sample_target(longest: int, short_probability: float, rng: random.Random) -> int:
    """Sample the length to which a document's chunks are filled.

    It is `longest` or, with the probability `short_probability`, uniform from 2 to `longest`.
    """
    return rng.randint(2, longest) if rng.random() < short_probability else longest


def make_instances(
    documents: Sequence[Document],
    max_seq_length: int,
    short_probability: float,
    next_sentence: bool,
    rng: random.Random,
) -> list[Instance]:
    """Return the pairs of one pass over the documents, with NSP if `next_sentence`, else with SOP."""
    longest = max_seq_length - 3
    instances = []
    for number, document in enumerate(documents):
        target = sample_target(longest, short_probability, rng)
        chunk: list[Sentence] = []
        i = 0
        while i < len(document):
            chunk.append(document[i])
            if sum(map(len, chunk)) >= target or i == len(document) - 1:
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a = [piece for sentence in chunk[:a_end] for piece in sentence]
                b = [piece for sentence in chunk[a_end:] for piece in sentence]
                label = 0
                if len(chunk) == 1 or (next_sentence and rng.random() < 0.5):
                    b = other_text(documents, number, max(1, target - len(a)), rng)
                    label = 1
                    i -= len(chunk) - a_end  # the sentences that the random text replaces are used again
                elif not next_sentence and rng.random() < 0.5:
                    a, b = b, a
                    label = 1
                truncate(a, b, longest, rng)
                instances.append(Instance(a, b, label, len(chunk), a_end))
                chunk = []
            i += 1
    return instances


def other_text(documents: Sequence[Document], excluded: int, target: int, rng: random.Random) -> Sentence:
    """Return the tokens of a random document from a random sentence on.

    They end with the sentence that reaches `target` tokens, or with the document. The document is not number
    `excluded`, unless ten attempts all choose this number.
    """
    for _ in range(10):
        number = rng.randint(0, len(documents) - 1)
        if number != excluded:
            break
    text: Sentence = []
    document = documents[number]
    for sentence in document[rng.randint(0, len(document) - 1) :]:
        text += sentence
        if len(text) >= target:
            break
    return text


def truncate(a: Sentence, b: Sentence, longest: int, rng: random.Random) -> None:
    """Remove tokens of the longer segment, at its front or back, until both together have at most `longest` tokens."""
    while len(a) + len(b) > longest:
        side = a if len(a) > len(b) else b
        side.pop(0 if rng.random() < 0.5 else -1)


def mask(
    ids: Sequence[int], starts_word: Sequence[bool], special: Sequence[bool], *, size: int, mask_id: int,
    rng: random.Random, masked_lm_probability: float = 0.15, max_predictions: int = 20, ngram: int = 3,
) -> ReferenceMasked:  # fmt: skip
    """Choose spans of whole words and change their tokens.

    starts_word: the token begins a word; special: the token is never masked; size: the vocabulary size;
    masked_lm_probability: the fraction of the tokens to mask; max_predictions: the maximum number of masked tokens;
    ngram: the maximum number of words in a span.
    """
    words: list[list[int]] = []
    for position, is_special in enumerate(special):
        if is_special:
            continue
        if words and not starts_word[position]:
            words[-1].append(position)  # also across a [SEP] if segment B begins within a word
        else:
            words.append([position])
    budget = min(max_predictions, max(1, round(len(ids) * masked_lm_probability)))
    spans: list[MaskedSpan] = []
    masked = _cover(words, budget, ngram, spans, rng)
    changed = list(ids)
    for position in sorted(masked):
        sample_u = rng.random()  # uniform in [0, 1)
        if sample_u < 0.8:
            changed[position] = mask_id
        elif sample_u >= 0.9:
            changed[position] = rng.randint(0, size - 1)
    return ReferenceMasked(changed, {p: ids[p] for p in masked}, spans)


def _cover(words: list[list[int]], budget: int, ngram: int, spans: list[MaskedSpan], rng: random.Random) -> set[int]:
    """Choose spans at random until `budget` positions are covered; append them to `spans` and return the positions."""
    covered: set[int] = set()
    order = list(range(len(words)))
    rng.shuffle(order)
    for first in order:
        if len(covered) >= budget:
            break
        (requested,) = rng.choices(range(1, ngram + 1), [1 / n for n in range(1, ngram + 1)])
        n = min(requested, len(words) - first)
        while n > 1 and len(covered) + sum(map(len, words[first : first + n])) > budget:
            n -= 1
        span = [position for word in words[first : first + n] for position in word]
        if len(covered) + len(span) > budget or covered & set(span):
            continue
        covered |= set(span)
        spans.append(MaskedSpan(requested, n, crosses_sep=span[-1] - span[0] + 1 != len(span)))
    return covered
