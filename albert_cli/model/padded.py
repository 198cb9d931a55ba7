"""Run the models of `heads` on padded batches: this form is exported to ONNX for other runtimes.

The padded form uses the same weights as the packed form, in which the sequences of a batch are concatenated without
padding. It uses only plain operations, which every runtime has.

Shapes: N sequences, S positions, A attention heads of width d, E embedding size, H hidden size, V vocabulary size, C
labels or choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_cli.model.block import ACTIVATIONS
from albert_cli.model.encoder import Attention, Encoder, FeedForward
from albert_cli.model.heads import (
    BareEncoder,
    MaskedLanguageModel,
    MultipleChoice,
    PretrainingModel,
    QuestionAnswering,
    SequenceClassifier,
    TokenClassifier,
)
from albert_cli.model.hf_config import model_type

INPUT_NAMES: Final = ("input_ids", "attention_mask", "token_type_ids")
Axes = dict[int, str]  # the name of each dynamic axis (one whose size may differ from call to call), by its number
_PER_SEQUENCE: Final[Axes] = {0: "batch"}
_PER_TOKEN: Final[Axes] = {0: "batch", 1: "sequence"}


class PaddedModel(nn.Module):
    """A model of `heads` on padded inputs [N, S] of int64; for multiple choice the inputs are [N, C, S].

    Every input has the dynamic axes `input_axes`. `outputs` maps Hugging Face's name of each output to its dynamic
    axes. With `sep_id`, the id of [SEP], the tokens after the first [SEP] have segment 1 even if `token_type_ids`
    are 0, because the tokenizers of transformers.js return no segments.
    """

    def __init__(self, model: nn.Module, sep_id: int | None = None) -> None:
        super().__init__()
        self.model = model
        self.sep_id = sep_id
        self.encoder = cast(Encoder, model.encoder)
        self.input_axes: Axes = _PER_TOKEN
        if isinstance(model, MultipleChoice):
            self.input_axes = {0: "batch", 1: "choices", 2: "sequence"}
        self.outputs = _output_axes(model)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, ...]:
        """Return the output tensors in the order of `outputs`; `attention_mask` is 1 for tokens and 0 for padding."""
        model = self.model
        if self.sep_id is not None:
            is_separator = (input_ids == self.sep_id).long()
            # The number of separators up to and including a token is larger than `is_separator` (0 or 1) only after the
            # first separator.
            follows_separator = (is_separator.cumsum(-1) > is_separator).long()
            token_type_ids = torch.maximum(token_type_ids, follows_separator * attention_mask)
        if isinstance(model, MultipleChoice):
            states = self._encode(input_ids.flatten(0, 1), attention_mask.flatten(0, 1), token_type_ids.flatten(0, 1))
            logits = model.classifier(self._pooled(states))  # [N * C, 1]
            return (logits.view(input_ids.shape[0], input_ids.shape[1]),)
        states_NSH = self._encode(input_ids, attention_mask, token_type_ids)
        if isinstance(model, SequenceClassifier):
            return (model.classifier(self._pooled(states_NSH)),)
        if isinstance(model, TokenClassifier):
            return (model.classifier(states_NSH),)
        if isinstance(model, QuestionAnswering):
            start_NS, end_NS = model.span(states_NSH).unbind(-1)
            return start_NS, end_NS
        if isinstance(model, PretrainingModel):
            masked_NSV = model.masked(states_NSH, self.encoder.embeddings.word.weight)
            return masked_NSV, model.order(self._pooled(states_NSH))
        if isinstance(model, MaskedLanguageModel):
            return (model.masked(states_NSH, self.encoder.embeddings.word.weight),)
        if self.encoder.pooler is None:
            return (states_NSH,)
        return states_NSH, self._pooled(states_NSH)

    def _pooled(self, states_NSH: Tensor) -> Tensor:
        """Apply the pooler to the first token's state, that of [CLS]: [N, S, H] to [N, H]."""
        return self.encoder.pooled(states_NSH[:, 0])

    def _encode(self, ids_NS: Tensor, mask_NS: Tensor, segment_NS: Tensor) -> Tensor:
        """Return the last layer's states [N, S, H]."""
        encoder = self.encoder
        tables = encoder.embeddings
        positions_S = torch.arange(ids_NS.shape[1], device=ids_NS.device)
        x_NSE: Tensor = tables.norm(tables.word(ids_NS) + tables.position(positions_S) + tables.segment(segment_NS))
        x_NSH: Tensor = x_NSE if encoder.projection is None else encoder.projection(x_NSE)
        # This bias of the attention scores is 0 for tokens, and for padding so low that its probability is 0.
        bias_N11S = (1.0 - mask_NS[:, None, None, :].to(x_NSH.dtype)) * torch.finfo(x_NSH.dtype).min
        for attention_index, ffn_index in encoder.config.blocks():
            attention = cast(Attention, encoder.attention[attention_index])
            feed_forward = cast(FeedForward, encoder.feed_forward[ffn_index])
            x_NSH = attention.norm(x_NSH + attention.output(self._attend(attention, x_NSH, bias_N11S)))
            inner = ACTIVATIONS[encoder.config.hidden_act](feed_forward.up(x_NSH))
            x_NSH = feed_forward.norm(x_NSH + feed_forward.down(inner))
        return x_NSH

    def _attend(self, attention: Attention, x_NSH: Tensor, bias_N11S: Tensor) -> Tensor:
        """Return attention's contexts [N, S, H], to which the output projection is not yet applied."""
        config = self.encoder.config
        shape = (x_NSH.shape[0], x_NSH.shape[1], config.num_attention_heads, config.head_size)
        q_NASd = attention.query(x_NSH).view(shape).transpose(1, 2)
        k_NASd = attention.key(x_NSH).view(shape).transpose(1, 2)
        v_NASd = attention.value(x_NSH).view(shape).transpose(1, 2)
        scores_NASS = q_NASd @ k_NASd.transpose(-1, -2) / math.sqrt(config.head_size) + bias_N11S
        context_NASd: Tensor = F.softmax(scores_NASS, -1) @ v_NASd
        return context_NASd.transpose(1, 2).flatten(2)


def _output_axes(model: nn.Module) -> Mapping[str, Axes]:
    """Return the dynamic axes of each output of a model, by Hugging Face's name for the output."""
    if isinstance(model, MultipleChoice):
        return {"logits": {0: "batch", 1: "choices"}}
    if isinstance(model, SequenceClassifier):
        return {"logits": _PER_SEQUENCE}
    if isinstance(model, QuestionAnswering):
        return {"start_logits": _PER_TOKEN, "end_logits": _PER_TOKEN}
    if isinstance(model, PretrainingModel):
        is_bert = model_type(model.config, "ForPreTraining") == "bert"
        order_logits = "seq_relationship_logits" if is_bert else "sop_logits"
        # Programs that fill masks read `logits`, the name in ForMaskedLM. ForPreTraining's name is `prediction_logits`.
        return {"logits": _PER_TOKEN, order_logits: _PER_SEQUENCE}
    if isinstance(model, TokenClassifier | MaskedLanguageModel):
        return {"logits": _PER_TOKEN}
    assert isinstance(model, BareEncoder), f"{type(model).__name__} has no padded form"
    if model.encoder.pooler is None:
        return {"last_hidden_state": _PER_TOKEN}
    return {"last_hidden_state": _PER_TOKEN, "pooler_output": _PER_SEQUENCE}
