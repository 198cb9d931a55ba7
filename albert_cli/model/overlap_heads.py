"""Initialize attention heads to measure the word overlap between the two segments of a pair.

With random weights attention is nearly uniform. A small encoder needs some ten thousand updates before a token attends
to its other occurrences. Until then, its accuracy on tasks with pairs is that of the majority class. If query and key
are the same projection, every token attends to the most similar tokens from the first step on. Trockman and Kolter
(2023, arXiv 2305.09828) initialize all heads like this, with Wq Wk^T near the identity. Here only a few heads are
initialized like this, and only in the directions in which words differ.

`init_overlap_heads` first embeds sampled words at several positions and measures the input of the first block
(`FirstLayerStats`). It then computes the weights of the heads from these statistics.

Shapes: n sampled words; k samples of each word in each of 2 segments; m = 2 k n samples; V vocabulary size, E embedding
size, H hidden size, d width of an attention head; r directions in which words differ; c random combinations of these
directions, which a head compares; i directions ordered by variance; j directions that depend on the position; f waves
of the position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_cli.errors import ConfigError
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Attention, Encoder

SAMPLED_POSITIONS: Final = 60  # words are sampled at the first positions, which contain most pairs of texts

# Measurements of the first block's input.
_SAMPLED_WORDS: Final = 4096
_SAMPLES_PER_WORD: Final = 3  # in each segment, at random positions
_RIDGE: Final = 0.05  # this fraction of the mean variance is added to every variance, because some are near 0
# Thresholds for directions, as fractions of the largest value.
_MIN_POSITION_VARIANCE: Final = 0.08  # with a larger variance within a word, a direction depends on the position
_MIN_WORD_DEVIATION: Final = 0.05  # a direction with a smaller singular value does not distinguish words

# Attention scores before softmax. In an overlap head, the same word in the other text scores highest, then [CLS], then
# other words of the other text, then words of the same text.
_OTHER_TEXT_SCORE: Final = 8.0  # score of words of the other text; words of the same text have its negative
_SAME_WORD_SCORE: Final = 10.0  # added to the score of the same word
# Context heads attend to the tokens around a token.
_SAME_POSITION_SCORE: Final = 7.0  # a token's score with itself; the score decreases with the distance
_WAVE_FREQUENCIES: Final = (0.05, 0.22, 0.39, 0.56)  # radians per position; the waves' sum has a peak of five tokens
_CONTEXT_GAIN: Final = 10.0  # factor of the vector that a context head adds to a token


@dataclass(frozen=True)
class _OverlapStrength:
    """Constants of an overlap head."""

    cls_score: float  # score of [CLS] minus that of other words of the other text, before softmax
    gain: float  # factor of the outcome that the head adds to a token


# Without context heads, only [CLS] reads the outcomes of overlap heads, as the average over all tokens. A context head
# averages over only a few tokens, and needs clearer outcomes.
_WITHOUT_CONTEXT_HEADS: Final = _OverlapStrength(cls_score=5.0, gain=3.0)
_WITH_CONTEXT_HEADS: Final = _OverlapStrength(cls_score=7.0, gain=6.0)


def check_overlap_heads(heads: int, context_heads: int, config: ModelConfig) -> None:
    """Raise `ConfigError` unless a model of this shape has room for this many overlap and context heads."""
    limit = config.num_attention_heads
    requested = {
        "model.overlap_heads": heads,
        "model.overlap_context_heads": context_heads,
        "model.overlap_heads + model.overlap_context_heads": heads + context_heads,
    }
    for name, number in requested.items():
        if not 0 <= number <= limit:
            raise ConfigError(f"{name} is {number}", f"choose 0 to {limit}, the model's attention heads")
    if heads and config.head_size < 4:
        raise ConfigError(
            f"model.overlap_heads needs heads of width 4 or more; the model's heads have {config.head_size}",
            "use -s model.overlap_heads=0",
        )
    if heads and config.embedding_size < 4:
        raise ConfigError(
            f"model.overlap_heads needs embeddings of size 4 or more; the model's have {config.embedding_size}",
            "use -s model.overlap_heads=0",
        )


@torch.no_grad()
def init_overlap_heads(
    encoder: Encoder,
    heads: int,
    *,
    seed: int,
    cls_id: int,
    word_ids: Tensor,
    positions: int = SAMPLED_POSITIONS,
    context_heads: int = 0,
) -> None:
    """Set the first `heads` heads of each block so that a token attends to the same word in the other segment.

    If the other segment lacks the word, the token attends to [CLS]. The head adds the outcome, present or absent, to
    the token, along a direction in which words hardly differ. In the next layer [CLS] averages the outcomes over all
    tokens, because the queries of [CLS] are set to zero. The two segment vectors are moved apart, so that heads can
    distinguish the segments.

    The last `context_heads` heads of each block attend to the tokens around a token. They add to the token, along
    another direction, how many of these tokens occur in the other segment: an answer is near the words of its question.

    Call this function right before fine-tuning on a task with pairs: pretraining would overwrite such heads. `cls_id`
    is the id of [CLS], and `word_ids` are the tokens that occur in texts. Most pairs should end within the first
    `positions` positions. `heads = 0` changes nothing.
    """
    if not heads:
        return
    generator = torch.Generator().manual_seed(seed)
    _separate_segments(encoder, word_ids, generator)
    stats = measure_first_layer(encoder, cls_id, word_ids, positions, generator)
    strength = _WITH_CONTEXT_HEADS if context_heads else _WITHOUT_CONTEXT_HEADS
    total = encoder.config.num_attention_heads
    context_direction_H = stats.by_variance_iH[2 * heads]  # the first after the two of each overlap head
    for attention in encoder.attention:
        assert isinstance(attention, Attention)
        for head in range(heads):
            _set_overlap_head(attention, head, encoder.config.head_size, stats, strength, generator)
        for head in range(total - context_heads, total):
            _set_context_head(attention, head, encoder.config.head_size, stats, context_direction_H, generator)
        _flatten_cls_attention(attention, stats)


def _separate_segments(encoder: Encoder, word_ids: Tensor, generator: torch.Generator) -> None:
    """Set the distance of the two segment vectors to twice the median norm of a word, in a random direction."""
    segment_2E = encoder.embeddings.segment.weight
    word_VE = encoder.embeddings.word.weight
    step_E = torch.randn(word_VE.shape[1], generator=generator)
    step_E = F.normalize(step_E - step_E.mean(), dim=0) * word_VE[word_ids].norm(dim=1).median()
    segment_2E[:2] = segment_2E[:2].mean(0) + torch.stack([step_E, -step_E])


def _flatten_cls_attention(attention: Attention, stats: FirstLayerStats) -> None:
    """Set the query of [CLS] to zero, so that it attends to all tokens evenly; the words' queries hardly change.

    The new query of an input x is the old one minus `detector_H @ (x - mean_H)` times the query of [CLS]. This factor
    is 1 for [CLS] and about 0 for words.
    """
    query = attention.query
    cls_query_H = query.weight @ (stats.cls_H + stats.mean_H) + query.bias
    query.weight.sub_(torch.outer(cls_query_H, stats.detector_H))
    query.bias.add_(cls_query_H * (stats.detector_H @ stats.mean_H))


# ---------------------------------------------------------------- measuring


@dataclass(frozen=True)
class FirstLayerStats:
    """Statistics of the first block's input, in H dimensions and fp32; `mean_H` is the mean over words.

    `cls_H` is the vector of [CLS] minus the mean. `detector_H` detects [CLS]: for an input x,
    `detector_H @ (x - mean_H)` is 1 for [CLS] and about 0 for words.
    `segment_H` is the unit vector from the second segment to the first, and `half_step` half their distance.
    `words_nH` are the words' vectors minus the mean and the effects of position and segment. `whitening_rH` are the
    directions in which words differ, each divided by the square root of its singular value, which makes the words'
    deviations more even. `by_variance_iH` are unit directions, ordered by ascending variance. Words hardly differ in
    the first few, so the heads write their outcomes there.
    `wave_fH` recovers the position: `wave_fH @ (x - mean_H)` is about the cosines and sines of `_WAVE_FREQUENCIES`
    times the position, minus their mean.
    """

    mean_H: Tensor
    cls_H: Tensor
    detector_H: Tensor
    segment_H: Tensor
    half_step: float
    words_nH: Tensor
    whitening_rH: Tensor
    by_variance_iH: Tensor
    wave_fH: Tensor


def measure_first_layer(
    encoder: Encoder, cls_id: int, word_ids: Tensor, positions: int, generator: torch.Generator
) -> FirstLayerStats:
    """Measure how words, positions, segments and [CLS] differ in the first block's input, with sampled words."""
    word_ids = word_ids[torch.randperm(len(word_ids), generator=generator)[:_SAMPLED_WORDS]]
    limit = min(positions, encoder.config.max_position_embeddings)
    positions_2kn = torch.randint(1, limit, (2, _SAMPLES_PER_WORD, len(word_ids)), generator=generator)
    inputs: list[Tensor] = []
    for segment, positions_kn in enumerate(positions_2kn):
        inputs += [first_layer_input(encoder, word_ids, positions_n, segment) for positions_n in positions_kn]
    inputs_2knH = torch.stack(inputs).view(2, _SAMPLES_PER_WORD, *inputs[0].shape)
    mean_H = inputs_2knH.mean((0, 1, 2))
    cls_H = first_layer_input(encoder, torch.tensor([cls_id]), torch.tensor([0]), 0)[0] - mean_H

    # Averaged over its positions, a word has nearly the same input in both segments, apart from one vector that is
    # about equal for all words: the step from segment 1 to segment 0.
    word_2nH = inputs_2knH.mean(1)
    step_nH = word_2nH[0] - word_2nH[1]
    segment_H = F.normalize(step_nH.mean(0), dim=0)
    half_step = float((step_nH @ segment_H).mean()) / 2

    # Least squares, with the inverse covariance of all inputs, finds the maps that detect [CLS] and the position. The
    # directions with the smallest variances are free for the outcomes of heads.
    centered_mH = (inputs_2knH - mean_H).flatten(0, 2)
    variance_H, directions_HH = torch.linalg.eigh(centered_mH.T @ centered_mH / len(centered_mH))
    inverse_HH = directions_HH / (variance_H + _RIDGE * variance_H.mean()) @ directions_HH.T
    detector_H = inverse_HH @ cls_H / (cls_H @ inverse_HH @ cls_H)
    angle_m4 = positions_2kn.flatten()[:, None] * torch.tensor(_WAVE_FREQUENCIES)
    wave_mf = torch.cat([angle_m4.cos(), angle_m4.sin()], 1)
    wave_fH = (inverse_HH @ centered_mH.T @ (wave_mf - wave_mf.mean(0)) / len(centered_mH)).T

    within_word_mH = (inputs_2knH - word_2nH[:, None]).flatten(0, 2)
    words_nH = _remove_position_and_segment(word_2nH.mean(0) - mean_H, within_word_mH, segment_H)
    return FirstLayerStats(
        mean_H=mean_H,
        cls_H=cls_H,
        detector_H=detector_H,
        segment_H=segment_H,
        half_step=half_step,
        words_nH=words_nH,
        whitening_rH=_whiten_words(words_nH),
        by_variance_iH=_directions_by_variance(directions_HH),
        wave_fH=wave_fH,
    )


def first_layer_input(encoder: Encoder, ids: Tensor, positions: Tensor, segment: int) -> Tensor:
    """Return the first block's input for tokens `ids` [n] at `positions` [n] of a segment (0 or 1), [n, H] in fp32."""
    embeddings = encoder.embeddings
    x_nE = embeddings.norm(
        embeddings.word.weight[ids] + embeddings.position.weight[positions] + embeddings.segment.weight[segment]
    )
    x_nH: Tensor = x_nE if encoder.projection is None else encoder.projection(x_nE)
    return x_nH.float()


def _directions_by_variance(directions_HH: Tensor) -> Tensor:
    """Return unit directions by ascending variance, [i, H], without the component that the block's LayerNorm removes.

    `directions_HH` has eigenvectors as columns, with ascending variance. The first one is left out: without a
    projection, it is the direction that the LayerNorm of the embeddings removes.
    """
    hidden = len(directions_HH)
    # The unit vector of equal components. LayerNorm subtracts the mean, and with it this direction.
    ones_H = directions_HH.new_full((hidden,), hidden**-0.5)
    by_variance_iH = directions_HH.T[1:]
    return F.normalize(by_variance_iH - torch.outer(by_variance_iH @ ones_H, ones_H), dim=1)


def _remove_position_and_segment(words_nH: Tensor, within_word_mH: Tensor, segment_H: Tensor) -> Tensor:
    """Project the directions of the segment and of the position out of the word vectors.

    `within_word_mH` are the samples minus the mean of their word and segment, so they differ by the position only. In a
    narrow model with random weights, all directions depend on the position. Therefore only the directions with the
    largest variance are removed, at most half as many as the rank of the word vectors.
    """
    variance_H, directions_HH = torch.linalg.eigh(within_word_mH.T @ within_word_mH / len(within_word_mH))
    is_removed_H = variance_H > _MIN_POSITION_VARIANCE * variance_H.max()
    limit = max(int(torch.linalg.matrix_rank(words_nH)) // 2, 1)
    is_removed_H[:-limit] = False  # the variances ascend, so the last directions depend on the position most
    position_Hj = directions_HH[:, is_removed_H]
    basis_Hj: Tensor = torch.linalg.qr(torch.cat([position_Hj, segment_H[:, None]], 1))[0]
    return words_nH - words_nH @ basis_Hj @ basis_Hj.T


def _whiten_words(words_nH: Tensor) -> Tensor:
    """Return the directions in which words differ, [r, H], each divided by the square root of its singular value."""
    _, singular_values, directions = torch.linalg.svd(words_nH, full_matrices=False)
    is_large = singular_values > _MIN_WORD_DEVIATION * singular_values[0]
    whitening_rH: Tensor = directions[is_large] / singular_values[is_large, None].sqrt()
    return whitening_rH


# ---------------------------------------------------------------- heads


def _set_overlap_head(
    attention: Attention,
    head: int,
    size: int,
    stats: FirstLayerStats,
    strength: _OverlapStrength,
    generator: torch.Generator,
) -> None:
    """Set one head: d - 2 rows of query and key compare words, one row compares segments, one detects [CLS].

    The head writes in two directions. Along `outcome_H` it writes the token's outcome. Along `mean_outcome_H` it writes
    the mean of the outcomes from the layer below, weighted by its attention. [CLS] attends to all tokens evenly, so it
    gets the plain mean.
    """
    root = math.sqrt(size)  # attention divides scores by sqrt(d)
    rows = slice(head * size, (head + 1) * size)
    outcome_H = stats.by_variance_iH[2 * head]
    mean_outcome_H = stats.by_variance_iH[2 * head + 1]
    random_cr = nn.init.orthogonal_(torch.empty(size - 2, len(stats.whitening_rH)), generator=generator)
    words_cH = random_cr @ stats.whitening_rH
    # The score of a word with itself is its squared norm in the compared directions, divided by sqrt(d). This factor
    # makes the mean of this score over words `_SAME_WORD_SCORE`.
    words_cH *= math.sqrt(_SAME_WORD_SCORE * root / float(((stats.words_nH @ words_cH.T) ** 2).sum(1).mean()))
    # `text_H @ (x - mean_H)` of a word x is on average +-sqrt(_OTHER_TEXT_SCORE * root); the segment gives the sign.
    text_H = math.sqrt(_OTHER_TEXT_SCORE * root) / stats.half_step * stats.segment_H
    cls_scale = math.sqrt((_OTHER_TEXT_SCORE + strength.cls_score) * root)

    # The segment's row has opposite signs in query and key: the other text scores positive, the same text negative.
    query_dH = torch.cat([words_cH, -text_H[None], torch.zeros_like(text_H)[None]])
    word_and_text_keys = torch.cat([words_cH, text_H[None]])  # [d - 1, H]
    # [CLS] is not a word of either text, so its key is zero in these rows.
    word_and_text_keys -= torch.outer(word_and_text_keys @ stats.cls_H, stats.detector_H)
    key_dH = torch.cat([word_and_text_keys, cls_scale * stats.detector_H[None]])
    for layer, weight_dH in ((attention.query, query_dH), (attention.key, key_dH)):
        layer.weight[rows] = weight_dH
        layer.bias[rows] = -weight_dH @ stats.mean_H
    attention.query.bias[rows.stop - 1] = cls_scale  # the last row scores [CLS] alike for every query

    # The first value row is -1 for [CLS] and 0 for words; the second is the outcome of the layer below. The other rows
    # are random; the output matrix ignores them until training changes it.
    random_cH = nn.init.orthogonal_(torch.empty(size - 2, len(outcome_H)), generator=generator)
    attention.value.weight[rows] = torch.cat([-stats.detector_H[None], outcome_H[None], random_cH])
    attention.value.bias[rows] = 0
    attention.value.bias[rows.start] = stats.detector_H @ stats.mean_H
    attention.value.bias[rows.start + 1] = -outcome_H @ stats.mean_H
    attention.output.weight[:, rows] = 0
    attention.output.weight[:, rows.start] = strength.gain * outcome_H
    attention.output.weight[:, rows.start + 1] = strength.gain * mean_outcome_H


def _set_context_head(
    attention: Attention, head: int, size: int, stats: FirstLayerStats, direction_H: Tensor, generator: torch.Generator
) -> None:
    """Set a head that attends to the tokens around a token, and adds the mean of their outcomes along `direction_H`.

    It reads the outcomes that overlap head 0 wrote.
    """
    rows = slice(head * size, (head + 1) * size)
    num_waves = min(size, len(stats.wave_fH))
    # At distance 0, cos^2 + sin^2 = 1 for each frequency, so the score is about gain^2 * len(_WAVE_FREQUENCIES) /
    # sqrt(d). A head of fewer than 8 dimensions lacks some sines; its score is lower.
    gain = math.sqrt(_SAME_POSITION_SCORE * math.sqrt(size) / len(_WAVE_FREQUENCIES))
    for layer in (attention.query, attention.key):
        layer.weight[rows] = 0
        layer.bias[rows] = 0
        layer.weight[rows][:num_waves] = gain * stats.wave_fH[:num_waves]
        layer.bias[rows][:num_waves] = -gain * stats.wave_fH[:num_waves] @ stats.mean_H
    # The first value row reads the outcome of overlap head 0; the output matrix ignores the random rows.
    outcome_H = stats.by_variance_iH[0]
    random_dH = nn.init.orthogonal_(torch.empty(size - 1, len(direction_H)), generator=generator)
    attention.value.weight[rows] = torch.cat([outcome_H[None], random_dH])
    attention.value.bias[rows] = 0
    attention.value.bias[rows.start] = -outcome_H @ stats.mean_H
    attention.output.weight[:, rows] = 0
    attention.output.weight[:, rows.start] = _CONTEXT_GAIN * direction_H
