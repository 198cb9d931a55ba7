"""The recipe's section for questions that are answered by a span of a text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from albert_cli.errors import ConfigError


@dataclass(frozen=True)
class SpanSettings:
    """`[span]`, for questions answered by a span of a text; the defaults are the reference's.

    `max_query_length` and `max_answer_length` in pieces; a context that is too long becomes windows, each beginning
    `doc_stride` pieces after the one before. `head`: "linear" is a start and an end logit a piece, "beam" finds ends
    for each of the `start_top` best starts and says whether there is an answer; "auto" takes the paper's (linear for
    1.1, beam for 2.0). `n_best` answers are kept of each question, `end_top` ends of each start. A question whose
    null odds exceed `threshold` is left unanswered in 2.0. `holdout` is the part of the articles that is held out
    where there is no dev file.
    """

    max_query_length: int = 64
    doc_stride: int = 128
    max_answer_length: int = 30
    head: Literal["auto", "linear", "beam"] = "auto"
    n_best: int = 20
    start_top: int = 5
    end_top: int = 5
    threshold: float = 0.0
    holdout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("max_query_length", "doc_stride", "max_answer_length", "n_best", "start_top", "end_top"):
            if getattr(self, name) < 1:
                raise ConfigError(f"span.{name} is {getattr(self, name)}", "it must be at least 1")
        if math.isnan(self.threshold):
            raise ConfigError("span.threshold is not a number", "0 is the usual one; inf leaves no question unanswered")
        if not 0 < self.holdout < 1:
            raise ConfigError(f"span.holdout is {self.holdout}", "it lies between 0 and 1")


def recorded(made_with: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a checkpoint's recorded settings that are of this section."""
    return {field.name: made_with[field.name] for field in fields(SpanSettings) if field.name in made_with}
