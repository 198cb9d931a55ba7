"""Settings of the tasks `squad1` and `squad2`, whose answers are spans of a text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from albert_cli.config import PositiveFraction, PositiveInt
from albert_cli.data.pairs import SPECIALS
from albert_cli.errors import ConfigError

Version = Literal["1.1", "2.0"]


@dataclass(frozen=True)
class SpanSettings:
    """The recipe section `[span]`; the defaults are those of the reference implementation.

    * `max_query_length` and `max_answer_length` are in tokens.
    * A long context is split into windows that start `doc_stride` tokens apart.
    * `head`: "linear" has a start and an end logit per token. "beam" predicts ends for each of the `start_top` best
      starts, and whether there is an answer. "auto" is the paper's choice: linear for 1.1, beam for 2.0.
    * The beam head keeps `end_top` ends per start. `nbest_predictions.json` has `n_best` answers per question.
    * In 2.0 a question is left unanswered if its null odds exceed `threshold`.
    * `holdout` is the fraction of articles that is held out of train if there is no dev file.
    """

    max_query_length: PositiveInt = 64
    doc_stride: PositiveInt = 128
    max_answer_length: PositiveInt = 30
    head: Literal["auto", "linear", "beam"] = "auto"
    n_best: PositiveInt = 20
    start_top: PositiveInt = 5
    end_top: PositiveInt = 5
    threshold: Annotated[float, Ge(-math.inf)] = 0.0  # any number but NaN
    holdout: PositiveFraction = 0.1

    def check(self, max_seq_length: int) -> None:
        """Raise `ConfigError` if windows of `max_seq_length` tokens have no room for the context."""
        if max_seq_length - SPECIALS <= self.max_query_length:
            raise ConfigError(
                f"data.max_seq_length = {max_seq_length} leaves no room for a context next to a question of "
                f"span.max_query_length = {self.max_query_length} tokens",
                "increase max_seq_length or lower max_query_length",
            )
