"""Word vectors from the corpus's own co-occurrences: what is known of words before the first step of training.

Counts within a window become positive pointwise mutual information, and a truncated SVD makes dense vectors of it: the
matrix that skip-gram factorises by stochastic steps, up to a shift (Levy and Goldberg, 2014, NeurIPS 27). Window,
weights by distance and the smoothing of contexts are theirs too (Levy, Goldberg and Dagan, 2015, TACL 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from albert_cli.data.shards import TokenCorpus
from albert_cli.randomness import Integers

WINDOW: Final = 8  # tokens to either side; a neighbour at distance d counts 1 / d
_CONTEXTS: Final = 8192  # the commonest tokens: 30,000 words by as many contexts take 1 GB
_TOKENS_A_WORD: Final = 1000  # read for each of the vocabulary, evenly over the corpus; more make no better vectors
_RUN: Final = 1 << 20  # tokens read at a time
_SMOOTHING: Final = 0.75  # exponent of the contexts' frequencies: rare contexts would weigh too much
_SPARE: Final = 32  # further dimensions in which the SVD looks for the leading ones
_ROUNDS: Final = 4  # power iterations of the SVD


def compute_word_vectors(corpus: TokenCorpus, size: int, seed: int) -> Tensor:
    """A vector for every token of the vocabulary, float32 [V, size], leading dimensions first; zeros for unseen ones.

    A function of the corpus and the seed, but for the last bits, which depend on the processor.
    """
    pmi_VC = _positive_pmi(count_cooccurrences(corpus))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rank = min(size + _SPARE, *pmi_VC.shape)
        left_VR, spread_R, _ = torch.svd_lowrank(pmi_VC, rank, niter=_ROUNDS)
    vectors_VR = left_VR[:, :size] * spread_R[:size].sqrt()
    vectors_VR[pmi_VC.sum(1) == 0] = 0
    return torch.nn.functional.pad(vectors_VR, (0, size - vectors_VR.shape[1]))


def count_cooccurrences(corpus: TokenCorpus) -> Tensor:
    """How often each token has each of the commonest tokens beside it: float32 [V, C + 1], the rest in the last column.

    Neighbours are counted across sentences and, rarely, across documents.
    """
    frequencies = corpus.unigram_counts()
    contexts = min(len(frequencies), _CONTEXTS)
    column_of = np.full(len(frequencies), contexts, np.int64)
    column_of[np.argsort(-frequencies, kind="stable")[:contexts]] = np.arange(contexts)
    counts = torch.zeros(len(frequencies) * (contexts + 1))
    for ids in _iter_runs(corpus):
        row, column = torch.from_numpy(ids * (contexts + 1)), torch.from_numpy(column_of[ids])
        for distance in range(1, min(WINDOW + 1, len(ids))):
            weight = torch.full((len(ids) - distance,), 1 / distance)
            counts.index_add_(0, row[:-distance] + column[distance:], weight)
            counts.index_add_(0, row[distance:] + column[:-distance], weight)
    return counts.view(len(frequencies), contexts + 1)


def _iter_runs(corpus: TokenCorpus) -> Iterator[Integers]:
    """Runs of neighbouring tokens, int64: all of a small corpus, an even share of one that has more than are read."""
    share = min(1.0, _TOKENS_A_WORD * len(corpus.unigram_counts()) / max(corpus.tokens, 1))
    for shard in corpus.shards:
        for start in range(0, shard.n_tokens, _RUN):
            there = min(_RUN, shard.n_tokens - start)
            yield shard.ids[start : start + max(1, round(share * there))].astype(np.int64)


def _positive_pmi(counts_VC: Tensor) -> Tensor:
    """max(0, log p(context | token) / p(context)) of the counts, in their own memory: [V, C]."""
    total_V1 = counts_VC.sum(1, keepdim=True).clamp(min=1e-9)
    shares_VC = counts_VC[:, :-1]
    # Beside each other is mutual, so that every token's total as a token is its total as a context.
    context_C = shares_VC.sum(0).pow(_SMOOTHING) / total_V1.pow(_SMOOTHING).sum()
    return shares_VC.div_(total_V1).div_(context_C.clamp(min=1e-12)).log_().clamp_(min=0)
