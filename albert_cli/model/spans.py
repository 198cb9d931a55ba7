"""The head that finds an answer's end for each of its likeliest starts, and says whether there is one (SQuAD 2.0).

It is XLNet's (arXiv 1906.08237), which the paper's SQuAD 2.0 results use. Shapes: T packed tokens, N sequences, K
starts of each, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from albert_cli.model.config import ModelConfig
from albert_cli.model.encoder import Encoder, initialize
from albert_cli.model.packing import PackedTokens


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
        a_TH = nn.functional.linear(x_TH, of_token, self.dense.bias)
        b_NKH = nn.functional.linear(start_NKH, of_start)
        x_TKH = self.norm(torch.tanh(a_TH[:, None] + b_NKH.index_select(0, sequence_T)))
        return self.output(x_TKH)[..., 0]  # type: ignore[no-any-return]


class AnswerableHead(nn.Module):
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
    """The encoder with a start logit a token, end logits for given starts, and a logit of there being no answer.

    `made_with` is what its config.json should say of how inputs were made.
    """

    made_with: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, pooler=False)
        self.start = nn.Linear(config.hidden_size, 1)
        self.end = EndHead(config)
        self.answerable = AnswerableHead(config)
        for head in (self.start, self.end, self.answerable):
            head.apply(partial(initialize, std=config.initial_std))

    def forward(self, tokens: PackedTokens) -> tuple[Tensor, Tensor]:
        """States [T, H] and start logits [T]; `end` and `answerable` go on from them."""
        x_TH = self.encoder(tokens, all_rows=True)
        return x_TH, self.start(x_TH)[:, 0]
