"""Initialize attention heads to measure the word overlap between the two segments of a pair.

From random weights attention is nearly uniform, and a small encoder needs some ten thousand updates before a token
attends to its other occurrences; until then tasks on pairs stay at the majority class. If query and key are one and the
same projection, every token attends to the most similar tokens from the first step on. Trockman and Kolter (2023, arXiv
2305.09828) start Wq Wk' near the identity; here only a few heads do, and only in the directions in which words differ.

Shapes: n sampled words, k readings of each in each of 2 segments, m = 2 k n readings; E embedding, H hidden, d head
width, r directions in which words differ, c of them that a head compares, i directions that words do not use, f waves
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

SAMPLED_POSITIONS: Final = 60  # the first positions, which most texts of a pair occupy

# Measurements of the first layer's input.
_SAMPLED_WORDS: Final = 4096
_READINGS_PER_WORD: Final = 3  # in each segment, at random positions
_RIDGE: Final = 0.05  # of the mean variance, added to every variance: some directions hardly vary
# Thresholds relative to the direction with the largest standard deviation.
_POSITION_DIRECTION: Final = 0.08  # a direction that varies more than this with the position is not about words
_WORD_DIRECTION: Final = 0.05  # a direction that varies less than this with the word does not tell words apart

# Attention scores before softmax. An overlap head ranks the same word in the other text first, then [CLS], then other
# words of the other text, then words of its own text.
_OTHER_TEXT_SCORE: Final = 8.0  # above or below zero, for words of the other text and of the same text
_SAME_WORD_SCORE: Final = 10.0  # in addition, for the same word
# Context heads attend to the tokens around a token.
_SAME_POSITION_SCORE: Final = 7.0  # of a token with itself; it falls off with the distance
_WAVE_FREQUENCIES: Final = (0.05, 0.22, 0.39, 0.56)  # radians a position; their sum peaks within some five tokens
_CONTEXT_GAIN: Final = 10.0  # factor of a context head's result


@dataclass(frozen=True)
class _OverlapStrength:
    """The constants of an overlap head: what [CLS] scores above other words, and the gain of the head's result."""

    cls_score: float
    gain: float


_FOR_CLS: Final = _OverlapStrength(cls_score=5.0, gain=3.0)  # [CLS] reads the average over all tokens
_FOR_EACH_TOKEN: Final = _OverlapStrength(cls_score=7.0, gain=6.0)  # context heads read single tokens


def check_overlap_heads(heads: int, context_heads: int, config: ModelConfig) -> None:
    """Raise `ConfigError` unless a model of this shape has room for this many overlap and context heads."""
    limit = config.num_attention_heads
    requested = {"overlap_heads": heads, "overlap_context_heads": context_heads, "both": heads + context_heads}
    for name, number in requested.items():
        if not 0 <= number <= limit:
            raise ConfigError(f"model.{name} is {number}", f"choose 0 to {limit}, the model's attention heads")
    if heads and config.head_size < 4:
        raise ConfigError(
            f"model.overlap_heads needs heads of width 4; the model's have {config.head_size}",
            "-s model.overlap_heads=0",
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
    the token, along a direction that words do not use. In the next layer [CLS] attends to all tokens evenly, because
    its queries are set to zero, and so reads the mean outcome. Segment vectors are moved clearly apart. This is for
    tasks on pairs, right before fine-tuning: pretraining has no use for such heads and destroys them. `word_ids` are
    the tokens of texts; texts are expected in two segments, [CLS] first, in the first `positions` positions.

    The last `context_heads` heads of each block attend to the tokens around a token. They add to it, along another
    direction, how many of these tokens occur in the other segment: an answer is near the words of its question.
    """
    if not heads:
        return
    generator = torch.Generator().manual_seed(seed)
    _separate_segments(encoder, word_ids, generator)
    stats = measure_first_layer(encoder, cls_id, word_ids, positions, generator)
    strength = _FOR_EACH_TOKEN if context_heads else _FOR_CLS
    total = encoder.config.num_attention_heads
    for block in encoder.attention:
        assert isinstance(block, Attention)
        for head in range(heads):
            _set_overlap_head(block, head, encoder.config.head_size, stats, strength, generator)
        context_direction_H = stats.unused_iH[2 * heads]
        for head in range(total - context_heads, total):
            _set_context_head(block, head, encoder.config.head_size, stats, context_direction_H, generator)
        _flatten_cls_attention(block, stats)


def _separate_segments(encoder: Encoder, word_ids: Tensor, generator: torch.Generator) -> None:
    """Move the two segment vectors apart by twice a word's length, in a random direction."""
    segment_2E = encoder.embeddings.segment.weight
    word_VE = encoder.embeddings.word.weight
    step_E = torch.randn(word_VE.shape[1], generator=generator)
    step_E = F.normalize(step_E - step_E.mean(), dim=0) * word_VE[word_ids].norm(dim=1).median()
    segment_2E[:2] = segment_2E[:2].mean(0) + torch.stack([step_E, -step_E])


def _flatten_cls_attention(block: Attention, stats: FirstLayerStats) -> None:
    """Set the queries of [CLS] to zero, so that it attends to all tokens evenly; the words' queries do not change."""
    query = block.query
    cls_query = query.weight @ (stats.cls_H + stats.mean_H) + query.bias
    query.weight.sub_(torch.outer(cls_query, stats.detector_H))
    query.bias.add_(cls_query * (stats.detector_H @ stats.mean_H))


# ---------------------------------------------------------------- measuring


@dataclass(frozen=True)
class FirstLayerStats:
    """Statistics of the first block's input, in H dimensions and fp32.

    `mean_H` is the mean over words, `cls_H` is [CLS] less that mean. `detector_H`: its product with a vector less the
    mean is 1 for [CLS] and about 0 for words. `segment_H` is the unit step from the second to the first segment,
    `half_step` half its length. `words_nH` are the words' vectors less the mean, without position and segment;
    `whitening_rH` evens out their standard deviations (it divides by their square roots). `unused_iH` are directions in
    which words hardly differ. `wave_fH`: its product with a vector less the mean is about the cosines and sines of
    `_WAVE_FREQUENCIES` times the position.
    """

    mean_H: Tensor
    cls_H: Tensor
    detector_H: Tensor
    segment_H: Tensor
    half_step: float
    words_nH: Tensor
    whitening_rH: Tensor
    unused_iH: Tensor
    wave_fH: Tensor


def measure_first_layer(
    encoder: Encoder, cls_id: int, word_ids: Tensor, positions: int, generator: torch.Generator
) -> FirstLayerStats:
    """Measure how words, positions, segments and [CLS] differ in the first block's input."""
    word_ids = word_ids[torch.randperm(len(word_ids), generator=generator)[:_SAMPLED_WORDS]]
    limit = min(positions, encoder.config.max_position_embeddings)
    positions_2kn = torch.randint(1, limit, (2, _READINGS_PER_WORD, len(word_ids)), generator=generator)
    inputs_2knH = torch.stack(
        [
            torch.stack(
                [first_layer_input(encoder, word_ids, sampled_n, segment) for sampled_n in positions_2kn[segment]]
            )
            for segment in (0, 1)
        ]
    )
    mean_H = inputs_2knH.mean((0, 1, 2))
    cls_H = first_layer_input(encoder, torch.tensor([cls_id]), torch.tensor([0]), 0)[0] - mean_H

    # The step between segments, from words at the mean of their positions.
    word_2nH = inputs_2knH.mean(1)
    step_nH = word_2nH[0] - word_2nH[1]
    segment_H = F.normalize(step_nH.mean(0), dim=0)
    half_step = float((step_nH @ segment_H).mean()) / 2

    # Covariance of all inputs: its inverse finds [CLS] and the position by least squares, and the directions of the
    # smallest variance are free to carry results.
    centered_mH = (inputs_2knH - mean_H).flatten(0, 2)
    variance_H, directions_HH = torch.linalg.eigh(centered_mH.T @ centered_mH / len(centered_mH))
    inverse_HH = directions_HH / (variance_H + _RIDGE * variance_H.mean()) @ directions_HH.T
    detector_H = inverse_HH @ cls_H / (cls_H @ inverse_HH @ cls_H)
    wave_mf = _position_waves(positions_2kn.flatten())
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
        unused_iH=_unused_directions(directions_HH),
        wave_fH=wave_fH,
    )


def first_layer_input(encoder: Encoder, ids: Tensor, positions: Tensor, segment: int) -> Tensor:
    """Return the first block's input for tokens [n] at these positions of a segment, [n, H] in fp32."""
    embeddings = encoder.embeddings
    x_nE = embeddings.norm(
        embeddings.word.weight[ids] + embeddings.position.weight[positions] + embeddings.segment.weight[segment]
    )
    x_nH: Tensor = x_nE if encoder.projection is None else encoder.projection(x_nE)
    return x_nH.float()


def _position_waves(positions_m: Tensor) -> Tensor:
    """Return the cosines and sines of positions [m] at all frequencies, [m, f]."""
    angle_mf = positions_m[:, None] * torch.tensor(_WAVE_FREQUENCIES)
    return torch.cat([angle_mf.cos(), angle_mf.sin()], 1)


def _unused_directions(directions_HH: Tensor) -> Tensor:
    """Return unit directions of small variance as rows, smallest first, from eigenvectors of ascending variance."""
    hidden = len(directions_HH)
    ones_H = directions_HH.new_full((hidden,), hidden**-0.5)  # LayerNorm removes this direction
    unused_iH = directions_HH.T[1:]
    return F.normalize(unused_iH - torch.outer(unused_iH @ ones_H, ones_H), dim=1)


def _remove_position_and_segment(words_nH: Tensor, within_word_mH: Tensor, segment_H: Tensor) -> Tensor:
    """Project out of word vectors the directions of the segment and of the positions."""
    variance_H, directions_HH = torch.linalg.eigh(within_word_mH.T @ within_word_mH / len(within_word_mH))
    position_Hj = directions_HH[:, variance_H > _POSITION_DIRECTION * variance_H.max()]
    basis_Hj: Tensor = torch.linalg.qr(torch.cat([position_Hj, segment_H[:, None]], 1))[0]
    return words_nH - words_nH @ basis_Hj @ basis_Hj.T


def _whiten_words(words_nH: Tensor) -> Tensor:
    """Return the directions in which words differ, [r, H], each divided by the root of its singular value."""
    _, singular_r, directions_rH = torch.linalg.svd(words_nH, full_matrices=False)
    is_used = singular_r > _WORD_DIRECTION * singular_r[0]
    whitening_rH: Tensor = directions_rH[is_used] / singular_r[is_used, None].sqrt()
    return whitening_rH


# ---------------------------------------------------------------- heads


def _set_overlap_head(
    block: Attention,
    head: int,
    size: int,
    stats: FirstLayerStats,
    strength: _OverlapStrength,
    generator: torch.Generator,
) -> None:
    """Set one head: d - 2 query and key rows compare words, one compares segments, one detects [CLS]."""
    root = math.sqrt(size)  # attention divides its scores by it
    rows = slice(head * size, (head + 1) * size)
    outcome_H = stats.unused_iH[2 * head]
    carried_H = stats.unused_iH[2 * head + 1]
    random_cr = nn.init.orthogonal_(torch.empty(size - 2, len(stats.whitening_rH)), generator=generator)
    words_cH = random_cr @ stats.whitening_rH
    words_cH *= math.sqrt(_SAME_WORD_SCORE * root / float(((stats.words_nH @ words_cH.T) ** 2).sum(1).mean()))
    text_H = math.sqrt(_OTHER_TEXT_SCORE * root) / stats.half_step * stats.segment_H
    cls_scale = math.sqrt((_OTHER_TEXT_SCORE + strength.cls_score) * root)

    # The segment's row has opposite signs in query and key: the other text scores positive, the same text negative.
    query_dH = torch.cat([words_cH, -text_H[None], torch.zeros_like(text_H)[None]])
    key_dH = torch.cat([words_cH, text_H[None]])
    key_dH = key_dH - torch.outer(key_dH @ stats.cls_H, stats.detector_H)  # [CLS] is no word of either text
    key_dH = torch.cat([key_dH, cls_scale * stats.detector_H[None]])
    for linear, weight_dH in ((block.query, query_dH), (block.key, key_dH)):
        linear.weight[rows] = weight_dH
        linear.bias[rows] = -weight_dH @ stats.mean_H
    block.query.bias[rows.stop - 1] = cls_scale

    # Values: -1 for [CLS] and 0 for words; the outcome from the layer below; random rows, which nothing reads yet.
    random_cH = nn.init.orthogonal_(torch.empty(size - 2, len(outcome_H)), generator=generator)
    block.value.weight[rows] = torch.cat([-stats.detector_H[None], outcome_H[None], random_cH])
    block.value.bias[rows] = 0
    block.value.bias[rows.start] = stats.detector_H @ stats.mean_H
    block.value.bias[rows.start + 1] = -outcome_H @ stats.mean_H
    block.output.weight[:, rows] = 0
    block.output.weight[:, rows.start] = strength.gain * outcome_H
    block.output.weight[:, rows.start + 1] = strength.gain * carried_H


def _set_context_head(
    block: Attention, head: int, size: int, stats: FirstLayerStats, direction_H: Tensor, generator: torch.Generator
) -> None:
    """Set a head that attends to the tokens around a token and adds their outcome of the first overlap head."""
    rows = slice(head * size, (head + 1) * size)
    waves = min(size, len(stats.wave_fH))
    gain = math.sqrt(_SAME_POSITION_SCORE * math.sqrt(size) / len(_WAVE_FREQUENCIES))
    for linear in (block.query, block.key):
        linear.weight[rows] = 0
        linear.bias[rows] = 0
        linear.weight[rows][:waves] = gain * stats.wave_fH[:waves]
        linear.bias[rows][:waves] = -gain * stats.wave_fH[:waves] @ stats.mean_H
    random_cH = nn.init.orthogonal_(torch.empty(size - 1, len(direction_H)), generator=generator)
    block.value.weight[rows] = torch.cat([stats.unused_iH[:1], random_cH])
    block.value.bias[rows] = 0
    block.value.bias[rows.start] = -stats.unused_iH[0] @ stats.mean_H
    block.output.weight[:, rows] = 0
    block.output.weight[:, rows.start] = _CONTEXT_GAIN * direction_H
