"""What is put on the encoder: the two pretraining objectives (§3.1), and a classifier for tasks.

Shapes: M masked positions, N sequences, V vocabulary, C labels.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import ACTIVATIONS, Encoder, initialize
from albert_cli.model.packing import PackedTokens


class MaskedLanguageHead(nn.Module):
    """Hidden state -> E -> vocabulary; the last matrix is the word table itself, only its bias is new."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size)
        self.norm = nn.LayerNorm(config.embedding_size, eps=config.layer_norm_eps)
        self.activation = ACTIVATIONS[config.hidden_act]
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x_MH: Tensor, word_VE: Tensor) -> Tensor:
        """[M, H] to logits [M, V]."""
        x_ME = self.norm(self.activation(self.dense(x_MH)))
        return F.linear(x_ME, word_VE, self.bias)


class PretrainingLogits(NamedTuple):
    """`masked` [M, V] over the vocabulary, `order` [N, 2]: 0 = original order, 1 = swapped."""

    masked: Tensor
    order: Tensor


class PretrainingModel(nn.Module):
    """The encoder with masked-language and sentence-order heads; logits at masked positions only."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        self.masked = MaskedLanguageHead(config)
        self.order = nn.Linear(config.hidden_size, 2)
        for head in (self.masked, self.order):
            head.apply(partial(initialize, std=config.initializer_range))

    def forward(self, tokens: PackedTokens) -> PretrainingLogits:
        """Logits of both objectives for a packed batch."""
        x_RH = self.encoder(tokens)
        masked_MV = self.masked(x_RH.index_select(0, tokens.rows.masked), self.encoder.embeddings.word.weight)
        return PretrainingLogits(masked_MV, self.order(self.encoder.pooled(x_RH.index_select(0, tokens.rows.first))))


class SequenceClassifier(nn.Module):
    """The encoder with one linear layer on the pooled [CLS] vector; one output makes it a regression."""

    def __init__(self, config: ModelConfig, num_labels: int) -> None:
        super().__init__()
        self.config, self.num_labels = config, num_labels
        self.encoder = Encoder(config)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, num_labels)
        initialize(self.classifier, std=config.initializer_range)

    def forward(self, tokens: PackedTokens) -> Tensor:
        """Logits [N, C] for a packed batch."""
        x_RH = self.encoder(tokens)
        pooled_NH = self.encoder.pooled(x_RH.index_select(0, tokens.rows.first))
        return self.classifier(self.dropout(pooled_NH))  # type: ignore[no-any-return]
