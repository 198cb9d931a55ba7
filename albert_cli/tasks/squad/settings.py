"""Settings of the tasks `squad1` and `squad2`, whose answers are spans of a text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from annotated_types import Ge, Le

from albert_cli.config import PositiveFraction, PositiveInt
from albert_cli.data.pairs import SPECIALS
from albert_cli.errors import ConfigError

Version = Literal["1.1", "2.0"]


@dataclass(frozen=True)
class SpanSettings:
    """The recipe section `[span]`; the defaults are those of ALBERT's released code.

    * `max_query_length` and `max_answer_length` are the maximum numbers of tokens of a question and of an answer.
    * A long context is split into windows that start `doc_stride` tokens apart.
    * `head = "linear"` has a start and an end logit per token. `head = "beam"` scores ends for each of the `start_top`
      best starts, and predicts whether there is an answer. `head = "auto"` is the paper's choice: linear for version
      1.1, beam for 2.0.
    * The beam head retains the `end_top` best ends of each start.
    * `n_best` is the number of answers per question in `nbest_predictions.json`. The linear head combines its `n_best`
      best starts and ends.
    * In 2.0 a question is left unanswered if its null score exceeds `threshold`.
    * `holdout` is the fraction of train's articles that is held out as dev data if there is no dev file.
    """

    max_query_length: PositiveInt = 64
    doc_stride: PositiveInt = 128
    max_answer_length: PositiveInt = 30
    head: Literal["auto", "linear", "beam"] = "auto"
    n_best: PositiveInt = 20
    start_top: PositiveInt = 5
    end_top: PositiveInt = 5
    threshold: Annotated[float, Ge(-1e9), Le(1e9)] = 0.0  # results are JSON, which has no infinity
    holdout: PositiveFraction = 0.1

    def check(self, max_seq_length: int) -> None:
        """Raise `ConfigError` if windows of `max_seq_length` tokens have no room for the context."""
        if max_seq_length - SPECIALS <= self.max_query_length:
            raise ConfigError(
                f"data.max_seq_length = {max_seq_length} leaves no room for a context next to a question of "
                f"span.max_query_length = {self.max_query_length} tokens",
                "increase max_seq_length or lower max_query_length",
            )

    def clamp_to_positions(self, positions: int) -> Self:
        """Shorten `max_query_length` to half of a model's positions, so that the context has the other half."""
        return replace(self, max_query_length=min(self.max_query_length, positions // 2))
