"""The two heads that find spans, their losses, and the best spans of a window (§4.2 and appendix A.4).

The linear one has a start and an end logit per token, as in Hugging Face. The beam one is XLNet's (arXiv 1906.08237),
which the paper's SQuAD 2.0 results use: it finds an answer's end for each of its likeliest starts, and says whether
there is an answer. Shapes: T packed tokens, N sequences of at most S tokens, K starts of each, H hidden.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_cli.data.arrays import concatenate_ranges
from albert_cli.data.batches import PackedBatch
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Encoder, initialize
from albert_cli.model.packing import PackedTokens, pack, to_device
from albert_cli.tasks.base import check_finite, iter_evaluation_batches
from albert_cli.tasks.features import Int64
from albert_cli.tasks.squad.data import SpanSettings
from albert_cli.tasks.squad.windows import SpanFeatures, WindowSpans

_MIN_SPANS = 40  # spans of a window at least: enough for an ensemble to find those of its other members
_MASKED_LOGIT = -1e30


class EndHead(nn.Module):
    """How well an answer that starts at one token ends at another: 2H -> H -> 1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, x_TH: Tensor, start_NKH: Tensor, sequence_T: Tensor) -> Tensor:
        """Logits [T, K] of every token as the end, for K starts of its own sequence."""
        # The product with [token; start], without repeating each start for every token.
        hidden = x_TH.shape[1]
        of_token, of_start = self.dense.weight[:, :hidden], self.dense.weight[:, hidden:]
        a_TH = F.linear(x_TH, of_token, self.dense.bias)
        b_NKH = F.linear(start_NKH, of_start)
        x_TKH = self.norm(torch.tanh(a_TH[:, None] + b_NKH.index_select(0, sequence_T)))
        return self.output(x_TKH)[..., 0]  # type: ignore[no-any-return]


class NullHead(nn.Module):
    """Whether a sequence holds no answer: from where it would start, and from [CLS]; 2H -> H -> 1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.output = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, start_NH: Tensor, first_NH: Tensor) -> Tensor:
        """Logits [N] of there being no answer."""
        x_NH = torch.tanh(self.dense(torch.cat([start_NH, first_NH], dim=1)))
        return self.output(self.dropout(x_NH))[:, 0]  # type: ignore[no-any-return]


class BeamQuestionAnswering(nn.Module):
    """The encoder with a start logit per token, end logits for given starts, and a logit of there being no answer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, pooler=False)
        self.start = nn.Linear(config.hidden_size, 1)
        self.end = EndHead(config)
        self.answerable = NullHead(config)
        for head in (self.start, self.end, self.answerable):
            head.apply(partial(initialize, std=config.initial_std))

    def forward(self, tokens: PackedTokens) -> tuple[Tensor, Tensor]:
        """States [T, H] and start logits [T]; `end` and `answerable` go on from them."""
        x_TH = self.encoder(tokens, all_rows=True)
        return x_TH, self.start(x_TH)[:, 0]


# ---------------------------------------------------------------- training


class _TokenRoles(NamedTuple):
    """Of a packed batch: `sequence` [T] whose token it is, `first` [N] each [CLS], and bool [T] for `context`.

    An answer may begin and end where `allowed` [T] is true: in the context, and at [CLS] where there is none.
    """

    sequence: Tensor
    first: Tensor
    context: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, tokens: PackedTokens, device: torch.device) -> _TokenRoles:
        first, context = tokens.host.offsets[:-1], tokens.host.segment_ids == 1
        context[tokens.host.offsets[1:] - 1] = False  # the last [SEP]
        allowed = context.copy()
        allowed[first] = True
        return cls(*to_device([tokens.host.sequence, first, context, allowed], device))


def span_loss(model: nn.Module, batch: PackedBatch, answers: Int64, device: torch.device) -> Tensor:
    """(start + end) / 2 of the cross-entropies, summed over windows; for the beam head (start + end + null) / 2.

    `answers` [N, 2] are the first and last token, 0, 0 for none.
    """
    (answer_N2,) = to_device([answers], device)
    tokens = pack(batch, device)
    if isinstance(model, BeamQuestionAnswering):
        return _beam_loss(model, tokens, _TokenRoles.of(tokens, device), answer_N2)
    logits_NS2 = tokens.layout.pad(model(tokens).float())
    is_token_NS = tokens.layout.pad(torch.ones_like(tokens.ids, dtype=torch.bool))
    logits_NS2 = logits_NS2.masked_fill(~is_token_NS[..., None], _MASKED_LOGIT)
    # As rows: over two dimensions of labels CUDA has no kernel that repeats its bits.
    logits_2NS = logits_NS2.transpose(1, 2).flatten(0, 1)
    return F.cross_entropy(logits_2NS, answer_N2.flatten(), reduction="sum") / 2


def _beam_loss(model: BeamQuestionAnswering, tokens: PackedTokens, layout: _TokenRoles, answer_N2: Tensor) -> Tensor:
    x_TH, start_T = model(tokens)
    allowed_NS = tokens.layout.pad(layout.allowed)
    start_NS = _pad_and_mask(start_T, tokens, allowed_NS)
    gold_NH = x_TH.index_select(0, layout.first + answer_N2[:, 0])
    end_NS = _pad_and_mask(model.end(x_TH, gold_NH[:, None], layout.sequence)[:, 0], tokens, allowed_NS)
    null_N = _null_logits(model, x_TH, start_NS, tokens, layout)
    is_impossible_N = (answer_N2[:, 0] == 0).float()
    spans = F.cross_entropy(start_NS, answer_N2[:, 0], reduction="sum")
    spans = spans + F.cross_entropy(end_NS, answer_N2[:, 1], reduction="sum")
    return (spans + F.binary_cross_entropy_with_logits(null_N, is_impossible_N, reduction="sum")) / 2


def _pad_and_mask(logits_T: Tensor, tokens: PackedTokens, allowed_NS: Tensor) -> Tensor:
    """Logits of tokens as [N, S] float32, far below any other where an answer may not be."""
    return tokens.layout.pad(logits_T.float()).masked_fill(~allowed_NS, _MASKED_LOGIT)


def _null_logits(
    model: BeamQuestionAnswering, x_TH: Tensor, start_NS: Tensor, tokens: PackedTokens, layout: _TokenRoles
) -> Tensor:
    """Logits [N] of there being no answer, float32."""
    chance_NS = start_NS.softmax(dim=1).to(x_TH.dtype)
    mean_NH = torch.einsum("ns,nsh->nh", chance_NS, tokens.layout.pad(x_TH))
    return model.answerable(mean_NH, x_TH.index_select(0, layout.first)).float()  # type: ignore[no-any-return]


# ---------------------------------------------------------------- prediction


def iter_window_spans(model: nn.Module, features: SpanFeatures, device: torch.device) -> Iterator[WindowSpans]:
    """The best spans of every window, some windows at a time."""
    kept = max(_MIN_SPANS, features.settings.n_best)
    decode = _decode_beam if isinstance(model, BeamQuestionAnswering) else _decode_linear
    for index, tokens in iter_evaluation_batches(features, device):
        with torch.inference_mode():
            begins = np.zeros(len(tokens.ids), dtype=bool)
            inside = tokens.host.offsets[:-1] + features.context_start(index)
            begins[concatenate_ranges(inside, features.length[index])] = features.is_best_window(index)
            may_start_NS = tokens.layout.pad(*to_device([begins], device))
            *found, null = decode(model, tokens, _TokenRoles.of(tokens, device), may_start_NS, features.settings)
            first, last, start, end = (values.flatten(1) for values in found)
            scores, best = (start + end).topk(min(kept, start.shape[1]), dim=1)
            first, last, start, end = (values.gather(1, best) for values in (first, last, start, end))
            terms = torch.stack([start, end], dim=2).masked_fill(scores[..., None] < _MASKED_LOGIT / 2, -torch.inf)
            on_host = [t.cpu().numpy() for t in (first, last, terms, null)]
        firsts, lasts, *scored = on_host
        for values in scored:
            check_finite(values[values != -np.inf])  # which only says that there is no span
        both, nulls = (values.astype(np.float64) for values in scored)  # Apple's GPUs have no float64
        yield WindowSpans(index, firsts, lasts, both.sum(axis=2), nulls)


def _decode_linear(
    model: nn.Module, tokens: PackedTokens, layout: _TokenRoles, may_start_NS: Tensor, settings: SpanSettings
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """All pairs of the `n_best` starts and ends: first, last, their logits [N, K, K]; and null [N], a sum of logits."""
    logits_T2 = model(tokens).float()
    start_NS = _pad_and_mask(logits_T2[:, 0], tokens, may_start_NS)
    end_NS = _pad_and_mask(logits_T2[:, 1], tokens, tokens.layout.pad(layout.context))
    count = min(settings.n_best, start_NS.shape[1])
    (start_NK, first_NK), (end_NK, last_NK) = start_NS.topk(count, dim=1), end_NS.topk(count, dim=1)
    first, last = first_NK[:, :, None].expand(-1, -1, count), last_NK[:, None, :].expand(-1, count, -1)
    fits = (last >= first) & (last - first < settings.max_answer_length)
    null_N = logits_T2.index_select(0, layout.first).sum(dim=1)
    start, end = start_NK[:, :, None].expand_as(first), end_NK[:, None, :].expand_as(last)
    return first, last, start, end.masked_fill(~fits, _MASKED_LOGIT), null_N


def _decode_beam(
    model: Any, tokens: PackedTokens, layout: _TokenRoles, may_start_NS: Tensor, settings: SpanSettings
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The best ends of the best starts: first, last, their log-probabilities [N, E, K]; and null logits [N]."""
    x_TH, start_T = model(tokens)
    allowed_NS = tokens.layout.pad(layout.allowed)
    start_NS = _pad_and_mask(start_T, tokens, allowed_NS)
    width = start_NS.shape[1]
    chance_NS = start_NS.log_softmax(dim=1).masked_fill(~may_start_NS, _MASKED_LOGIT)
    start_NK, first_NK = chance_NS.topk(min(settings.start_top, width), dim=1)
    # A short context has fewer starts than that; what stands for the others may lie behind the last token of all.
    first_NK = first_NK.masked_fill(start_NK < _MASKED_LOGIT / 2, 0)
    start_NKH = x_TH.index_select(0, (layout.first[:, None] + first_NK).flatten()).unflatten(0, first_NK.shape)
    end_NSK = tokens.layout.pad(model.end(x_TH, start_NKH, layout.sequence).float())
    end_NSK = end_NSK.masked_fill(~allowed_NS[..., None], _MASKED_LOGIT).log_softmax(dim=1)
    beyond = torch.arange(width, device=x_TH.device)[:, None] - first_NK[:, None, :]
    fits = (beyond >= 0) & (beyond < settings.max_answer_length) & tokens.layout.pad(layout.context)[..., None]
    end_NEK, last_NEK = end_NSK.masked_fill(~fits, _MASKED_LOGIT).topk(min(settings.end_top, width), dim=1)
    null_N = _null_logits(model, x_TH, start_NS, tokens, layout)
    first_NEK, start_NEK = (values[:, None, :].expand_as(last_NEK) for values in (first_NK, start_NK))
    return first_NEK, last_NEK, start_NEK, end_NEK, null_N
