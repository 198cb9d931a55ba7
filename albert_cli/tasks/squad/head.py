"""Train the two heads that find answer spans, and decode the best spans of a window from their outputs.

The linear head has a start and an end logit per token; its module is `model.heads.QuestionAnswering`. The beam head,
whose modules are defined here, is XLNet's (arXiv 1906.08237), which the paper uses for SQuAD 2.0 (§4.2, appendix A.4).
It scores ends for each of the most probable starts, and predicts whether there is an answer.

Shapes: T packed tokens, N sequences (windows) of at most S tokens, K starts per sequence, E ends per start, H hidden
size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

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
from albert_cli.tasks.squad.settings import SpanSettings
from albert_cli.tasks.squad.windows import SpanFeatures, WindowSpans

_MIN_SPANS = 40  # minimum number of spans retained per window, so that an ensemble's models have spans in common
_MASKED_LOGIT = -1e30  # finite, because a softmax over -inf alone would be NaN
_MASKED_BELOW = _MASKED_LOGIT / 2  # a lower score includes `_MASKED_LOGIT`; other scores are far above this limit


class EndHead(nn.Module):
    """A head with the logits of an answer's end, given its start: 2H -> H -> 1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.output = nn.Linear(config.hidden_size, 1)

    def forward(self, x_TH: Tensor, start_NKH: Tensor, sequence_T: Tensor) -> Tensor:
        """Return logits [T, K] of every token as the end, for each of the K starts of the token's sequence.

        `x_TH` and `start_NKH` are the hidden states of the tokens and of the starts. `sequence_T` is the index of each
        token's sequence.
        """
        # `dense` is a matmul with the concatenation [token; start]. It is computed in two parts, because the part of a
        # start is the same for all tokens of a sequence.
        hidden = x_TH.shape[1]
        token_weight = self.dense.weight[:, :hidden]
        start_weight = self.dense.weight[:, hidden:]
        tokens_TH = F.linear(x_TH, token_weight, self.dense.bias)
        starts_NKH = F.linear(start_NKH, start_weight)
        x_TKH = self.norm(torch.tanh(tokens_TH[:, None] + starts_NKH.index_select(0, sequence_T)))
        logits_TK1: Tensor = self.output(x_TKH)
        return logits_TK1[..., 0]


class NullHead(nn.Module):
    """A head with the logit of no answer, from the states of the expected start and of [CLS]: 2H -> H -> 1."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.output = nn.Linear(config.hidden_size, 1, bias=False)

    def forward(self, start_NH: Tensor, cls_NH: Tensor) -> Tensor:
        """Return logits [N] of no answer."""
        x_NH = torch.tanh(self.dense(torch.cat([start_NH, cls_NH], dim=1)))
        logits_N1: Tensor = self.output(self.dropout(x_NH))
        return logits_N1[:, 0]


class BeamQuestionAnswering(nn.Module):
    """The encoder with the beam head: start logits per token, end logits for each start, and a logit of no answer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, pooler=False)
        self.start = nn.Linear(config.hidden_size, 1)
        self.end = EndHead(config)
        self.null_answer = NullHead(config)
        for head in (self.start, self.end, self.null_answer):
            head.apply(partial(initialize, std=config.initial_std))

    def forward(self, tokens: PackedTokens) -> tuple[Tensor, Tensor]:
        """Return the hidden states [T, H], which `end` and `null_answer` need, and the start logits [T]."""
        x_TH = self.encoder(tokens, all_rows=True)
        return x_TH, self.start(x_TH)[:, 0]


class _TokenRoles(NamedTuple):
    """The roles of the tokens of a packed batch, whose sequences are concatenated without padding.

    * `sequence` [T] is the index of each token's sequence.
    * `cls` [N] is the index of each [CLS].
    * `is_context` [T] is true for the tokens of contexts.
    * `is_candidate` [T] is true for the tokens of contexts and for [CLS], which stands for no answer. The beam head
      normalizes the probabilities of starts and ends over these tokens, in training and in decoding.
    """

    sequence: Tensor
    cls: Tensor
    is_context: Tensor
    is_candidate: Tensor


def _token_roles(tokens: PackedTokens, device: torch.device) -> _TokenRoles:
    """Return the roles of a batch's tokens, as tensors on the device."""
    cls = tokens.host.offsets[:-1]
    last_separator = tokens.host.offsets[1:] - 1
    is_context = tokens.host.segment_ids == 1  # the context and the [SEP] after it
    is_context[last_separator] = False
    is_candidate = is_context.copy()
    is_candidate[cls] = True
    return _TokenRoles(*to_device([tokens.host.sequence, cls, is_context, is_candidate], device))


# ---------------------------------------------------------------- training


def span_loss(model: nn.Module, batch: PackedBatch, answers: Int64, device: torch.device) -> Tensor:
    """Return half the sum of the start loss, the end loss and, with the beam head, the no-answer loss.

    The factor is that of ALBERT's released code. The losses are summed over windows. `answers` int64 [N, 2] are the
    first and the last token of each answer, counted from [CLS]; both are 0 without an answer.
    """
    (answer_N2,) = to_device([answers], device)
    tokens = pack(batch, device)
    if isinstance(model, BeamQuestionAnswering):
        return _beam_loss(model, tokens, _token_roles(tokens, device), answer_N2)
    logits_NS2 = tokens.layout.pad(model(tokens).float())
    is_token_NS = tokens.layout.pad(torch.ones_like(tokens.ids, dtype=torch.bool))
    logits_NS2 = logits_NS2.masked_fill(~is_token_NS[..., None], _MASKED_LOGIT)
    # Starts and ends become rows [2N, S], because CUDA has no deterministic kernel for labels of two dimensions.
    logits_rows = logits_NS2.transpose(1, 2).flatten(0, 1)
    return F.cross_entropy(logits_rows, answer_N2.flatten(), reduction="sum") / 2


def _beam_loss(model: BeamQuestionAnswering, tokens: PackedTokens, roles: _TokenRoles, answer_N2: Tensor) -> Tensor:
    """Return the loss of the beam head, with the end logits for the gold starts."""
    first_N = answer_N2[:, 0]
    last_N = answer_N2[:, 1]
    x_TH, start_T = model(tokens)
    is_candidate_NS = tokens.layout.pad(roles.is_candidate)
    start_NS = _pad_and_mask(start_T, tokens, is_candidate_NS)
    gold_start_NH = x_TH.index_select(0, roles.cls + first_N)
    end_T = model.end(x_TH, gold_start_NH[:, None], roles.sequence)[:, 0]
    end_NS = _pad_and_mask(end_T, tokens, is_candidate_NS)
    null_N = _null_logits(model, x_TH, start_NS, tokens, roles)
    has_no_answer_N = (first_N == 0).float()
    start_loss = F.cross_entropy(start_NS, first_N, reduction="sum")
    end_loss = F.cross_entropy(end_NS, last_N, reduction="sum")
    null_loss = F.binary_cross_entropy_with_logits(null_N, has_no_answer_N, reduction="sum")
    return (start_loss + end_loss + null_loss) / 2


def _pad_and_mask(logits_T: Tensor, tokens: PackedTokens, is_allowed_NS: Tensor) -> Tensor:
    """Return logits as [N, S] float32, with `_MASKED_LOGIT` at positions that are not allowed."""
    return tokens.layout.pad(logits_T.float()).masked_fill(~is_allowed_NS, _MASKED_LOGIT)


def _null_logits(
    model: BeamQuestionAnswering, x_TH: Tensor, start_NS: Tensor, tokens: PackedTokens, roles: _TokenRoles
) -> Tensor:
    """Return logits [N] of no answer, float32.

    The state of the expected start is the mean of the tokens' states, weighted by the tokens' probabilities as start.
    """
    probability_NS = start_NS.softmax(dim=1).to(x_TH.dtype)
    expected_start_NH = torch.einsum("ns,nsh->nh", probability_NS, tokens.layout.pad(x_TH))
    logits_N: Tensor = model.null_answer(expected_start_NH, x_TH.index_select(0, roles.cls))
    return logits_N.float()


# ---------------------------------------------------------------- prediction


class _Candidates(NamedTuple):
    """Pairs of a first and a last token in N windows. Some pairs are spans, which may be answers; the others are not.

    * `first` and `last` [N, …] are the tokens of each pair, counted from [CLS].
    * `start` and `end` [N, …] are the scores of the two tokens. In a pair that is no span at least one of them is
      `_MASKED_LOGIT`.
    * `null_score` [N] grows with the odds that a window has no answer; each decoder defines it.
    """

    first: Tensor
    last: Tensor
    start: Tensor
    end: Tensor
    null_score: Tensor


def iter_window_spans(model: nn.Module, features: SpanFeatures, device: torch.device) -> Iterator[WindowSpans]:
    """Yield the best spans of every window, batch by batch."""
    for index, tokens in iter_evaluation_batches(features, device):
        with torch.inference_mode():
            may_start_NS = _allowed_starts(features, index, tokens, device)
            roles = _token_roles(tokens, device)
            if isinstance(model, BeamQuestionAnswering):
                candidates = _decode_beam(model, tokens, roles, may_start_NS, features.settings)
            else:
                candidates = _decode_linear(model, tokens, roles, may_start_NS, features.settings)
            yield _select_best(candidates, index, max(_MIN_SPANS, features.settings.n_best))


def _allowed_starts(features: SpanFeatures, index: Int64, tokens: PackedTokens, device: torch.device) -> Tensor:
    """Return bool [N, S]: True for the context tokens that have more context in this window than in any other.

    Only these tokens may be starts, so overlapping windows have no span in common.
    """
    may_start = np.zeros(len(tokens.ids), dtype=bool)
    context_start = tokens.host.offsets[:-1] + features.context_start_in_sequence(index)
    may_start[concatenate_ranges(context_start, features.context_length[index])] = features.has_most_context(index)
    (may_start_T,) = to_device([may_start], device)
    return tokens.layout.pad(may_start_T)


def _select_best(candidates: _Candidates, index: Int64, count: int) -> WindowSpans:
    """Return the `count` best pairs of each window at `index` on the host; a pair that is no span has the score -inf.

    Raises `DivergedError` if the score of a span or a null score is not finite.
    """
    pair_scores = (candidates.start + candidates.end).flatten(1)
    best_scores, best = pair_scores.topk(min(count, pair_scores.shape[1]), dim=1)
    pairs = (candidates.first, candidates.last, candidates.start, candidates.end)
    first, last, start, end = (values.flatten(1).gather(1, best) for values in pairs)
    is_no_span = best_scores < _MASKED_BELOW
    start_and_end = torch.stack([start, end], dim=2).masked_fill(is_no_span[..., None], -torch.inf).cpu().numpy()
    null_score = candidates.null_score.cpu().numpy()
    check_finite(start_and_end[start_and_end != -np.inf])
    check_finite(null_score)
    # The device ranks the pairs by sums in float32. The result has sums in float64, which are computed on the host,
    # because Apple's GPUs lack float64.
    score = start_and_end.astype(np.float64).sum(axis=2)
    return WindowSpans(index, first.cpu().numpy(), last.cpu().numpy(), score, null_score.astype(np.float64))


def _decode_linear(
    model: nn.Module, tokens: PackedTokens, roles: _TokenRoles, may_start_NS: Tensor, settings: SpanSettings
) -> _Candidates:
    """Return all pairs [N, K, K] of the K = `n_best` best starts and K best ends, with logits as scores.

    The null score is the sum of the start and the end logit at [CLS].
    """
    logits_T2 = model(tokens).float()
    start_NS = _pad_and_mask(logits_T2[:, 0], tokens, may_start_NS)
    end_NS = _pad_and_mask(logits_T2[:, 1], tokens, tokens.layout.pad(roles.is_context))
    count = min(settings.n_best, start_NS.shape[1])
    start_NK, first_NK = start_NS.topk(count, dim=1)
    end_NK, last_NK = end_NS.topk(count, dim=1)
    first = first_NK[:, :, None].expand(-1, -1, count)
    last = last_NK[:, None, :].expand(-1, count, -1)
    is_span = (last >= first) & (last - first < settings.max_answer_length)
    start = start_NK[:, :, None].expand_as(first)
    end = end_NK[:, None, :].expand_as(last).masked_fill(~is_span, _MASKED_LOGIT)
    null_N = logits_T2.index_select(0, roles.cls).sum(dim=1)
    return _Candidates(first, last, start, end, null_N)


def _decode_beam(
    model: BeamQuestionAnswering, tokens: PackedTokens, roles: _TokenRoles, may_start_NS: Tensor, settings: SpanSettings
) -> _Candidates:
    """Return the pairs [N, E, K] of the K = `start_top` best starts and the E = `end_top` best ends of each start.

    The scores are log-probabilities. The null score is the logit of no answer.
    """
    x_TH, start_T = model(tokens)
    is_candidate_NS = tokens.layout.pad(roles.is_candidate)
    start_NS = _pad_and_mask(start_T, tokens, is_candidate_NS)
    width = start_NS.shape[1]
    log_start_NS = start_NS.log_softmax(dim=1).masked_fill(~may_start_NS, _MASKED_LOGIT)
    start_NK, first_NK = log_start_NS.topk(min(settings.start_top, width), dim=1)
    # In a short context some of the K starts are masked. Their positions are replaced by that of [CLS], because they
    # may be beyond the batch's last token.
    first_NK = first_NK.masked_fill(start_NK < _MASKED_BELOW, 0)
    start_index = (roles.cls[:, None] + first_NK).flatten()
    start_NKH = x_TH.index_select(0, start_index).unflatten(0, first_NK.shape)
    end_NSK = tokens.layout.pad(model.end(x_TH, start_NKH, roles.sequence).float())
    log_end_NSK = end_NSK.masked_fill(~is_candidate_NS[..., None], _MASKED_LOGIT).log_softmax(dim=1)
    distance_NSK = torch.arange(width, device=x_TH.device)[:, None] - first_NK[:, None, :]
    is_context_NS1 = tokens.layout.pad(roles.is_context)[..., None]
    is_span_NSK = (distance_NSK >= 0) & (distance_NSK < settings.max_answer_length) & is_context_NS1
    span_end_NSK = log_end_NSK.masked_fill(~is_span_NSK, _MASKED_LOGIT)
    end_NEK, last_NEK = span_end_NSK.topk(min(settings.end_top, width), dim=1)
    null_N = _null_logits(model, x_TH, start_NS, tokens, roles)
    first_NEK = first_NK[:, None, :].expand_as(last_NEK)
    start_NEK = start_NK[:, None, :].expand_as(last_NEK)
    return _Candidates(first_NEK, last_NEK, start_NEK, end_NEK, null_N)
