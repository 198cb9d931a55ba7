"""Word vectors from the corpus's co-occurrences, for informed initialization.

Counts within a window become positive pointwise mutual information (PPMI), and a truncated SVD gives dense vectors.
Skip-gram with negative sampling factorizes the same matrix by SGD, up to a constant shift (Levy and Goldberg, 2014,
NeurIPS 27). The window, the weights by distance and the smoothing of contexts follow Levy, Goldberg and Dagan (2015,
TACL 3).
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
_CONTEXTS: Final = 8192  # the number of contexts, which are the most frequent tokens; 30,000 x 8,192 counts take 1 GB
_TOKENS_PER_WORD: Final = 1000  # corpus tokens read for each vocabulary entry; more give no better vectors
_RUN_TOKENS: Final = 1 << 20  # tokens read at a time
_SMOOTHING: Final = 0.75  # exponent of the contexts' frequencies, or rare contexts would weigh too much
_OVERSAMPLING: Final = 32  # additional dimensions in which the randomized SVD searches
_POWER_ITERATIONS: Final = 4


def compute_word_vectors(corpus: TokenCorpus, size: int, seed: int) -> Tensor:
    """Compute a vector for every token, float32 [V, size], leading dimensions first; zeros for tokens never seen.

    The result depends on the corpus and the seed, and in its last bits on the processor.
    """
    pmi_VC = _positive_pmi(count_cooccurrences(corpus))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rank = min(size + _OVERSAMPLING, *pmi_VC.shape)
        left_VR, singular_R, _ = torch.svd_lowrank(pmi_VC, rank, niter=_POWER_ITERATIONS)
    vectors_VR = left_VR[:, :size] * singular_R[:size].sqrt()
    vectors_VR[pmi_VC.sum(1) == 0] = 0
    return torch.nn.functional.pad(vectors_VR, (0, size - vectors_VR.shape[1]))


def count_cooccurrences(corpus: TokenCorpus) -> Tensor:
    """Count the contexts of each token, float32 [V, C + 1].

    Each of the C most frequent tokens has a column as a context; the last column counts all others.
    Neighbors are counted across sentences and, rarely, across documents.
    """
    frequencies = corpus.unigram_counts()
    contexts = min(len(frequencies), _CONTEXTS)
    column_of_id = np.full(len(frequencies), contexts, np.int64)
    column_of_id[np.argsort(-frequencies, kind="stable")[:contexts]] = np.arange(contexts)
    counts = torch.zeros(len(frequencies) * (contexts + 1))
    for ids in _iter_runs(corpus):
        row_start = torch.from_numpy(ids * (contexts + 1))  # of the token's row in the flat counts
        column = torch.from_numpy(column_of_id[ids])
        for distance in range(1, min(WINDOW + 1, len(ids))):
            weight = torch.full((len(ids) - distance,), 1 / distance)
            counts.index_add_(0, row_start[:-distance] + column[distance:], weight)
            counts.index_add_(0, row_start[distance:] + column[:-distance], weight)
    return counts.view(len(frequencies), contexts + 1)


def _iter_runs(corpus: TokenCorpus) -> Iterator[Integers]:
    """Yield runs of neighboring tokens, int64: all of a small corpus, an even sample of a large one."""
    wanted_tokens = _TOKENS_PER_WORD * len(corpus.unigram_counts())
    fraction = min(1.0, wanted_tokens / max(corpus.tokens, 1))
    for shard in corpus.shards:
        for start in range(0, shard.n_tokens, _RUN_TOKENS):
            available = min(_RUN_TOKENS, shard.n_tokens - start)
            length = max(1, round(fraction * available))
            yield shard.ids[start : start + length].astype(np.int64)


def _positive_pmi(counts_VC: Tensor) -> Tensor:
    """Convert counts to PPMI, max(0, log (p(context | token) / p(context))), [V, C]; overwrite the counts."""
    total_V1 = counts_VC.sum(1, keepdim=True).clamp(min=1e-9)
    rates_VC = counts_VC[:, :-1]
    # Co-occurrence is symmetric, so the row sums are the totals of all contexts, including the last column.
    context_C = rates_VC.sum(0).pow(_SMOOTHING) / total_V1.pow(_SMOOTHING).sum()
    return rates_VC.div_(total_V1).div_(context_C.clamp(min=1e-12)).log_().clamp_(min=0)
