"""The models: an encoder with the heads of the pretraining objectives (§3.1) or with the head of a task.

Every model takes a packed batch (sequences concatenated without padding) and returns logits; `BareEncoder`, which has
no head, returns hidden states.

Shapes: T tokens, R rows that the model's heads read, M masked positions, N sequences, H hidden size, E embedding size,
V vocabulary size, C labels or choices.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from albert_cli.matmul import MatmulBackend, linear
from albert_cli.model.block import ACTIVATIONS
from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Encoder, initialize
from albert_cli.model.packing import PackedTokens


class _EncoderModel(nn.Module):
    """Base class of all models: the encoder, to which subclasses add a head."""

    def __init__(self, config: ModelConfig, *, pooler: bool = True) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, pooler=pooler)

    def _pooled(self, x_RH: Tensor, tokens: PackedTokens) -> Tensor:
        """Select the [CLS] states from the encoder's output and apply the pooler: [R, H] to [N, H]."""
        return self.encoder.pooled(x_RH.index_select(0, tokens.rows.first))


class MaskedLanguageHead(nn.Module):
    """Masked-language head: a linear layer to E, activation, LayerNorm, and a decoder to the vocabulary.

    The matrix of the decoder is the word table of the encoder, so this module has only the decoder's bias.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x_MH: Tensor, word_VE: Tensor, matmul: MatmulBackend = "torch") -> Tensor:
        """Map hidden states [M, H] to logits [M, V]; `word_VE` is the word table."""
        x_ME = linear(x_MH, self.dense.weight, self.dense.bias, matmul)
        return linear(self.norm(self.activation(x_ME)), word_VE, self.bias, matmul)


class PretrainingLogits(NamedTuple):
    """Logits of the two objectives.

    `masked` [M, V]: for the tokens of the vocabulary, at the masked positions. `sentence_order` [N, 2 or 3]: for the
    classes of each pair, such as in order (0) and swapped (1). `hub.ORDER_CLASSES` lists the classes of each objective.
    """

    masked: Tensor
    sentence_order: Tensor


class PretrainingModel(_EncoderModel):
    """The encoder with masked-language and sentence-order heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.masked = MaskedLanguageHead(config)
        self.order = nn.Linear(config.hidden_size, config.order_labels)
        for head in (self.masked, self.order):
            head.apply(partial(initialize, std=config.initial_std))

    def forward(self, tokens: PackedTokens, *, depth: int | None = None) -> PretrainingLogits:
        """Return the logits of both objectives; `depth` has the same meaning as in `Encoder.forward`."""
        x_RH = self.encoder(tokens, depth=depth)
        masked_MH = x_RH.index_select(0, tokens.rows.masked)
        masked_MV = self.masked(masked_MH, self.encoder.embeddings.word.weight, self.encoder.matmul)
        return PretrainingLogits(masked_MV, self.order(self._pooled(x_RH, tokens)))


class MaskedLanguageModel(_EncoderModel):
    """The encoder with the masked-language head alone, to predict masked tokens."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, pooler=False)
        self.masked = MaskedLanguageHead(config)
        self.masked.apply(partial(initialize, std=config.initial_std))

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Return logits [M, V] at the masked positions."""
        x_MH = self.encoder(tokens).index_select(0, tokens.rows.masked)
        logits_MV: Tensor = self.masked(x_MH, self.encoder.embeddings.word.weight, self.encoder.matmul)
        return logits_MV


class ScaledLinear(nn.Linear):
    """A linear layer for values of any size, which is trained in units of `scale` and saved as an ordinary layer.

    An optimizer such as AdamW changes a weight by about the learning rate in a step, whatever the size of the labels,
    so an ordinary layer does not reach labels in the hundreds. `scale` must be a power of two: saving and loading the
    weights then changes no bit. The outputs are in fp32, because bf16 would lose small differences of large values.
    """

    scale = 1.0

    def forward(self, x_NH: Tensor) -> Tensor:
        """Return the outputs [N, C] of the ordinary layer."""
        with torch.autocast(x_NH.device.type, enabled=False):
            values_NC = super().forward(x_NH.float())
            return values_NC if self.scale == 1 else values_NC * self.scale

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.scale != 1:
            for name in ("weight", "bias"):
                destination[prefix + name] = destination[prefix + name] * self.scale

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *options: Any) -> None:
        if self.scale != 1:
            for name in ("weight", "bias"):
                state_dict[prefix + name] = state_dict[prefix + name] / self.scale
        super()._load_from_state_dict(state_dict, prefix, *options)


class _Classifier(_EncoderModel):
    """Base class of classifiers: dropout and a linear layer, which subclasses apply to vectors of the encoder."""

    def __init__(
        self, config: ModelConfig, num_labels: int, *, pooler: bool = True, layer: type[nn.Linear] = nn.Linear
    ) -> None:
        super().__init__(config, pooler=pooler)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = layer(config.hidden_size, num_labels)
        initialize(self.classifier, std=config.initial_std)


class SequenceClassifier(_Classifier):
    """The encoder with a classifier on the pooled [CLS] vector; one label makes it a regression."""

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Return logits [N, C]."""
        pooled_NH = self._pooled(self.encoder(tokens), tokens)
        logits_NC: Tensor = self.classifier(self.dropout(pooled_NH))
        return logits_NC


class TokenClassifier(_Classifier):
    """The encoder with a classifier on each token's state, as in Hugging Face."""

    def __init__(self, config: ModelConfig, num_labels: int) -> None:
        super().__init__(config, num_labels, pooler=False)

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Return logits [T, C] for every token."""
        logits_TC: Tensor = self.classifier(self.dropout(self.encoder(tokens, all_rows=True)))
        return logits_TC


class MultipleChoice(SequenceClassifier):
    """A classifier with one logit per choice; the C sequences of a question are consecutive in the batch."""

    def __init__(self, config: ModelConfig, choices: int) -> None:
        super().__init__(config, num_labels=1)
        self.choices = choices

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Return logits [N / C, C], a row for each question; N must be a multiple of C."""
        return super().forward(tokens).view(-1, self.choices)


class QuestionAnswering(_EncoderModel):
    """The encoder with two logits per token: one for the start of an answer span and one for its end."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, pooler=False)
        self.span = nn.Linear(config.hidden_size, 2)
        initialize(self.span, std=config.initial_std)

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Return logits [T, 2], start and end, for every token."""
        logits_T2: Tensor = self.span(self.encoder(tokens, all_rows=True))
        return logits_T2


class EncoderStates(NamedTuple):
    """Hidden states of the last layer: `tokens` [T, H] of all tokens, and `first` [N, H] of each sequence's [CLS].

    `pooled` [N, H] is the pooler's output for `first`; None if the encoder has no pooler.
    """

    tokens: Tensor
    first: Tensor
    pooled: Tensor | None


class BareEncoder(_EncoderModel):
    """The encoder without a head, with or without the pooler."""

    def forward(self, tokens: PackedTokens) -> EncoderStates:
        """Return the last layer's states of every token."""
        x_TH = self.encoder(tokens, all_rows=True)
        first_token_N = tokens.rows.index.index_select(0, tokens.rows.first)
        first_NH = x_TH.index_select(0, first_token_N)
        pooled_NH = None if self.encoder.pooler is None else self.encoder.pooled(first_NH)
        return EncoderStates(x_TH, first_NH, pooled_NH)
