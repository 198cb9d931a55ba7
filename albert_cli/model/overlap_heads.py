"""Attention heads that count matched words: a small encoder knows at once how much of one text stands in the other.

From random weights attention is nearly uniform, and a small encoder needs some ten thousand updates before a token
finds its other occurrences; until then tasks on pairs of texts stay at the majority class. A head whose query and key
are one and the same projection lets every token look at the tokens most like itself from the first step on. Starting
Wq Wk' near the identity is due to Trockman and Kolter (2023, arXiv 2305.09828); here a few heads only, in the
directions in which words differ.
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

_SAMPLE: Final = 4096  # words to measure the word table by
_OTHER_TEXT: Final = 8.0  # before softmax: what the other text's words score more, and the own text's less
_TWIN: Final = 10.0  # what the same word scores on top
_NO_TWIN: Final = 5.0  # what [CLS], where attention goes without a twin, scores above any word of the other text
_GAIN: Final = 3.0  # with which what was found is added to the token
_NO_TWIN_OF_TOKEN, _GAIN_OF_TOKEN = 7.0, 6.0  # the same where every token has to know of itself, not [CLS] of all
SAMPLED_POSITIONS: Final = 60  # the first ones, where texts of a pair mostly lie
_AROUND: Final = (0.05, 0.22, 0.39, 0.56)  # radians a position: together they are largest within some five tokens
_NEAR: Final = 7.0  # before softmax, what a token scores with itself where a head looks at those around it
_SPREAD: Final = 10.0  # with which what was found around a token is added to it
_RIDGE: Final = 0.05  # of the mean variance, added to each: some directions hardly vary
_READINGS: Final = 3  # of every word, at places drawn at random, in each segment
_OF_PLACE: Final = 0.08  # a direction's spread over places, against the widest, above which it is not about words
_OF_WORDS: Final = 0.05  # a direction's spread over words, against the widest, below which they do not differ in it


def check_overlap_heads(heads: int, spreading: int, config: ModelConfig) -> None:
    """Raise `ConfigError` unless a model of this shape has room for this many heads that count, and that spread."""
    has = config.num_attention_heads
    for name, number in (("overlap_heads", heads), ("overlap_context_heads", spreading), ("both", heads + spreading)):
        if not 0 <= number <= has:
            raise ConfigError(
                f"model.{name} is {number}", f"the model has {has} attention heads; 0 leaves them as they are"
            )
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
    places: int = SAMPLED_POSITIONS,
    spreading: int = 0,
) -> None:
    """Have the first `heads` heads of every attention block find out how much of one text stands in the other.

    A token asks the *other* text for its own word, and [CLS] takes the attention where there is none: the head adds to
    the token, along a direction that words do not use, whether it found its twin. In the next layer [CLS], whose
    queries are set to zero and so attend to all tokens evenly, gets the mean of that over the two texts. For tasks
    on pairs, right before fine-tuning: pretraining has no use for such heads and destroys them. `word_ids` are the
    tokens that occur in texts; two segments, [CLS] first, in the first `places` positions. Segment vectors are set too,
    to lie clearly apart.

    The last `spreading` heads of every block look at the tokens around each token and add to it, along a direction of
    its own, how many of them have found their twin: an answer stands where the words of its question are.
    """
    if not heads:
        return
    generator = torch.Generator().manual_seed(seed)
    # Two segment vectors that differ by twice a word's length, in a direction of their own.
    segment_2E, word_VE = encoder.embeddings.segment.weight, encoder.embeddings.word.weight
    step_E = torch.randn(word_VE.shape[1], generator=generator)
    step_E = F.normalize(step_E - step_E.mean(), dim=0) * word_VE[word_ids].norm(dim=1).median()
    segment_2E[:2] = segment_2E[:2].mean(0) + torch.stack([step_E, -step_E])
    seen = measure_first_layer(encoder, cls_id, word_ids, generator, places)
    size, count = encoder.config.head_size, encoder.config.num_attention_heads
    for block in encoder.attention:
        assert isinstance(block, Attention)
        for head in range(heads):
            _set_overlap_head(block, head, size, seen, generator, of_token=spreading > 0)
        for head in range(count - spreading, count):
            _set_context_head(block, head, size, seen, seen.unused_iH[2 * heads], generator)
        # [CLS] sees all tokens alike; words' queries stay.
        query = block.query
        of_cls = query.weight @ (seen.cls_H + seen.mean_H) + query.bias
        query.weight.sub_(torch.outer(of_cls, seen.detector_H))
        query.bias.add_(of_cls * (seen.detector_H @ seen.mean_H))


@dataclass(frozen=True)
class FirstLayerStats:
    """What the first block sees of words and [CLS], all in H dimensions and float32.

    `mean_H` of words; `cls_H` is [CLS] less that mean. `detector_H`: its product with a vector less the mean is 1 at
    [CLS] and about 0 at words. `segment_H`: the unit step from the second to the first segment, `half` its length / 2.
    `words_nH`: the words' vectors less the mean, without places and segments; `whitening_rH` makes their spreads more
    even (divided by their square roots). `unused_iH`: directions in which words hardly differ. `place_fH`: its product
    with a vector less the mean is about the cosines and sines of `_AROUND` times the vector's position.
    """

    mean_H: Tensor
    cls_H: Tensor
    detector_H: Tensor
    segment_H: Tensor
    half: float
    words_nH: Tensor
    whitening_rH: Tensor
    unused_iH: Tensor
    place_fH: Tensor


def measure_first_layer(
    encoder: Encoder, cls_id: int, word_ids: Tensor, generator: torch.Generator, places: int
) -> FirstLayerStats:
    """Measure what the first block sees."""
    # Each word at some places of both segments: the mean over all, the step between segments, and [CLS] against it.
    word_ids = word_ids[torch.randperm(len(word_ids), generator=generator)[:_SAMPLE]]
    last = min(places, encoder.config.max_position_embeddings)
    places_2kn = torch.randint(1, last, (2, _READINGS, len(word_ids)), generator=generator)
    readings_2knH = torch.stack(
        [torch.stack([first_layer_input(encoder, word_ids, drawn_n, s) for drawn_n in places_2kn[s]]) for s in (0, 1)]
    )
    of_word_2nH = readings_2knH.mean(1)
    step_nH = of_word_2nH[0] - of_word_2nH[1]
    segment_H = F.normalize(step_nH.mean(0), dim=0)
    mean_H = readings_2knH.mean((0, 1, 2))
    cls_H = first_layer_input(encoder, torch.tensor([cls_id]), torch.tensor([0]), 0)[0] - mean_H

    # What tells [CLS] from words, and directions in which words hardly differ (ascending variances).
    x_mH = (readings_2knH - mean_H).flatten(0, 2)
    spread_H, directions_HH = torch.linalg.eigh(x_mH.T @ x_mH / len(x_mH))
    inverse_HH = directions_HH / (spread_H + _RIDGE * spread_H.mean()) @ directions_HH.T
    detector_H = inverse_HH @ cls_H / (cls_H @ inverse_HH @ cls_H)
    ones_H = torch.full_like(mean_H, len(mean_H) ** -0.5)  # LayerNorm takes that direction away
    unused_iH = directions_HH.T[1:]
    unused_iH = F.normalize(unused_iH - torch.outer(unused_iH @ ones_H, ones_H), dim=1)

    # Words less what places and segments add to them, and the directions in which words differ.
    moved_mH = (readings_2knH - of_word_2nH[:, None]).flatten(0, 2)
    of_place_H, places_HH = torch.linalg.eigh(moved_mH.T @ moved_mH / len(moved_mH))
    not_words_Hj = torch.cat([places_HH[:, of_place_H > _OF_PLACE * of_place_H.max()], segment_H[:, None]], 1)
    not_words_Hj = torch.linalg.qr(not_words_Hj)[0]
    words_nH = of_word_2nH.mean(0) - mean_H
    words_nH = words_nH - words_nH @ not_words_Hj @ not_words_Hj.T
    _, spread_r, words_rH = torch.linalg.svd(words_nH, full_matrices=False)
    kept = spread_r > _OF_WORDS * spread_r[0]
    whitening_rH = words_rH[kept] / spread_r[kept, None].sqrt()
    # How far apart the segments are, and where a token stands.
    half = float((step_nH @ segment_H).mean()) / 2
    angle_mf = places_2kn.flatten()[:, None] * torch.tensor(_AROUND)
    wave_mf = torch.cat([angle_mf.cos(), angle_mf.sin()], 1)
    place_fH = (inverse_HH @ x_mH.T @ (wave_mf - wave_mf.mean(0)) / len(x_mH)).T  # least squares, with the ridge
    return FirstLayerStats(mean_H, cls_H, detector_H, segment_H, half, words_nH, whitening_rH, unused_iH, place_fH)


def first_layer_input(encoder: Encoder, ids: Tensor, places: Tensor, segment: int) -> Tensor:
    """What the first block sees of tokens [n] at these places of a segment, [n, H] in fp32."""
    e = encoder.embeddings
    x_nE = e.norm(e.word.weight[ids] + e.position.weight[places] + e.segment.weight[segment])
    x_nH: Tensor = x_nE if encoder.projection is None else encoder.projection(x_nE)
    return x_nH.float()


def _set_overlap_head(
    block: Attention, head: int, size: int, seen: FirstLayerStats, generator: torch.Generator, *, of_token: bool
) -> None:
    """Query, key, value and output of one head: d - 2 rows compare words, one knows the text, one knows [CLS]."""
    root, rows = math.sqrt(size), slice(head * size, (head + 1) * size)
    no_twin, strength = (_NO_TWIN_OF_TOKEN, _GAIN_OF_TOKEN) if of_token else (_NO_TWIN, _GAIN)
    found_H, carried_H = seen.unused_iH[2 * head], seen.unused_iH[2 * head + 1]
    random_cr = nn.init.orthogonal_(torch.empty(size - 2, len(seen.whitening_rH)), generator=generator)
    words_cH = random_cr @ seen.whitening_rH
    words_cH *= math.sqrt(_TWIN * root / float(((seen.words_nH @ words_cH.T) ** 2).sum(1).mean()))
    text_H = math.sqrt(_OTHER_TEXT * root) / seen.half * seen.segment_H
    at_cls = math.sqrt((_OTHER_TEXT + no_twin) * root)

    query_dH = torch.cat([words_cH, -text_H[None], torch.zeros_like(text_H)[None]])
    key_dH = torch.cat([words_cH, text_H[None]])
    key_dH = key_dH - torch.outer(key_dH @ seen.cls_H, seen.detector_H)  # [CLS] is no word of either text
    key_dH = torch.cat([key_dH, at_cls * seen.detector_H[None]])
    for linear, weight_dH in ((block.query, query_dH), (block.key, key_dH)):
        linear.weight[rows], linear.bias[rows] = weight_dH, -weight_dH @ seen.mean_H
    block.query.bias[rows.stop - 1] = at_cls

    # Values: -1 at [CLS] and 0 elsewhere; what was found a layer below; and random rows that nothing is read from yet.
    random_cH = nn.init.orthogonal_(torch.empty(size - 2, len(found_H)), generator=generator)
    block.value.weight[rows] = torch.cat([-seen.detector_H[None], found_H[None], random_cH])
    block.value.bias[rows] = 0
    block.value.bias[rows.start] = seen.detector_H @ seen.mean_H
    block.value.bias[rows.start + 1] = -found_H @ seen.mean_H
    block.output.weight[:, rows] = 0
    block.output.weight[:, rows.start] = strength * found_H
    block.output.weight[:, rows.start + 1] = strength * carried_H


def _set_context_head(
    block: Attention, head: int, size: int, seen: FirstLayerStats, around_H: Tensor, generator: torch.Generator
) -> None:
    """A head that attends to the tokens around, and hands on what the first count head found there."""
    rows, waves = slice(head * size, (head + 1) * size), min(size, len(seen.place_fH))
    gain = math.sqrt(_NEAR * math.sqrt(size) / len(_AROUND))
    for linear in (block.query, block.key):
        linear.weight[rows], linear.bias[rows] = 0, 0
        linear.weight[rows][:waves] = gain * seen.place_fH[:waves]
        linear.bias[rows][:waves] = -gain * seen.place_fH[:waves] @ seen.mean_H
    random_cH = nn.init.orthogonal_(torch.empty(size - 1, len(around_H)), generator=generator)
    block.value.weight[rows] = torch.cat([seen.unused_iH[:1], random_cH])
    block.value.bias[rows] = 0
    block.value.bias[rows.start] = -seen.unused_iH[0] @ seen.mean_H
    block.output.weight[:, rows] = 0
    block.output.weight[:, rows.start] = _SPREAD * around_H
