"""Compute token vectors from the corpus's co-occurrences, for informed initialization of the embeddings.

Counts within a window become positive pointwise mutual information (PPMI), and a truncated SVD gives dense vectors.
Skip-gram with negative sampling factorizes the same matrix by SGD, up to a constant shift (Levy and Goldberg, 2014,
NeurIPS 27). The window, the weights by distance and the smoothing of contexts follow Levy, Goldberg and Dagan (2015,
TACL 3).

Shapes: V tokens of the vocabulary, C tokens that count as contexts, R singular vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor

from albert_cli.data.shards import TokenCorpus
from albert_cli.randomness import Integers

WINDOW: Final = 8  # tokens to either side; a neighbor at distance d counts 1 / d
_CONTEXTS: Final = 8192  # number of contexts, which are the most frequent tokens; 30,000 x 8,192 counts take 1 GB
_TOKENS_PER_ENTRY: Final = 1000  # corpus tokens that are read for each vocabulary entry; more give no better vectors
_RUN_TOKENS: Final = 1 << 20  # maximum number of tokens in a run, whose beginning is read at once
_SMOOTHING: Final = 0.75  # exponent of the contexts' frequencies, as in Levy et al.; without it rare contexts dominate
# Parameters of the randomized SVD (Halko, Martinsson and Tropp, 2011): additional dimensions, and power iterations.
_OVERSAMPLING: Final = 32
_POWER_ITERATIONS: Final = 4


def compute_word_vectors(corpus: TokenCorpus, size: int, seed: int) -> Tensor:
    """Compute a vector for each of V tokens, float32 [V, size]; a token that is not in the corpus has zeros.

    The dimensions are in descending order of their singular values. The result depends on the corpus and the seed, and
    in its last bits on the processor.
    """
    pmi_VC = _positive_pmi(count_cooccurrences(corpus))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rank = min(size + _OVERSAMPLING, *pmi_VC.shape)
        left_VR, singular_R, _ = torch.svd_lowrank(pmi_VC, rank, niter=_POWER_ITERATIONS)
    # The square root of the singular values gives better vectors than the values themselves (Levy et al., 2015).
    vectors_VR = left_VR[:, :size] * singular_R[:size].sqrt()
    vectors_VR[pmi_VC.sum(1) == 0] = 0  # tokens without positive PMI, to which the SVD gives rounding errors
    # A small matrix has fewer than `size` singular values.
    return torch.nn.functional.pad(vectors_VR, (0, size - vectors_VR.shape[1]))


def count_cooccurrences(corpus: TokenCorpus) -> Tensor:
    """Count the contexts of each of V tokens, float32 [V, C + 1], with the weight 1 / distance.

    Each of the C most frequent tokens has a column as a context. The last column counts all other contexts.
    Neighbors count across the boundaries of sentences and documents.
    """
    frequencies = corpus.unigram_counts()
    n_contexts = min(len(frequencies), _CONTEXTS)
    column_of_id = np.full(len(frequencies), n_contexts, np.int64)  # at first the last column for all tokens
    most_frequent_ids = np.argsort(-frequencies, kind="stable")[:n_contexts]
    column_of_id[most_frequent_ids] = np.arange(n_contexts)
    counts = torch.zeros(len(frequencies) * (n_contexts + 1))
    for ids in _iter_runs(corpus):
        row_start = torch.from_numpy(ids * (n_contexts + 1))  # at which each token's row begins in the flat counts
        column = torch.from_numpy(column_of_id[ids])
        for distance in range(1, min(WINDOW + 1, len(ids))):
            weight = torch.full((len(ids) - distance,), 1 / distance)
            counts.index_add_(0, row_start[:-distance] + column[distance:], weight)
            counts.index_add_(0, row_start[distance:] + column[:-distance], weight)
    return counts.view(len(frequencies), n_contexts + 1)


def _iter_runs(corpus: TokenCorpus) -> Iterator[Integers]:
    """Yield runs of consecutive ids, int64: the whole corpus if it is small, else the beginning of every run.

    The same fraction of every run is read: about `_TOKENS_PER_ENTRY` tokens in total for each entry of the vocabulary.
    """
    max_tokens = _TOKENS_PER_ENTRY * len(corpus.unigram_counts())
    fraction = min(1.0, max_tokens / max(corpus.n_tokens, 1))
    for shard in corpus.shards:
        for start in range(0, shard.n_tokens, _RUN_TOKENS):
            available_tokens = min(_RUN_TOKENS, shard.n_tokens - start)
            length = max(1, round(fraction * available_tokens))
            yield shard.ids[start : start + length].astype(np.int64)


def _positive_pmi(counts: Tensor) -> Tensor:
    """Convert the counts [V, C + 1] in place to PPMI, max(0, log(p(context | token) / p(context))): float32 [V, C].

    p(context) is smoothed: proportional to the context's count raised to 0.75.
    """
    total_V1 = counts.sum(1, keepdim=True).clamp(min=1e-9)
    context_counts_VC = counts[:, :-1]
    # Co-occurrence is symmetric: as a context, a token occurs as often as the sum of its row, also if it has no column.
    p_context_C = context_counts_VC.sum(0).pow(_SMOOTHING) / total_V1.pow(_SMOOTHING).sum()
    return context_counts_VC.div_(total_V1).div_(p_context_C.clamp(min=1e-12)).log_().clamp_(min=0)
