"""What `results.json` holds, as frozen records: written by evaluations, read by tables, reports and experiments.

Files may come from anywhere. A value of the wrong type counts as absent and is never an error.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic_core import PydanticUseDefault

from albert_cli import store

RESULTS = "results.json"
CONTROLS = {"init": "same init", "random": "random weights"}  # `model.weights`, and what it is called


def finite_number(value: object) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def finite_numbers(value: object) -> dict[str, float]:
    """The finite numbers of an object; none of anything else."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {str(key): found for key, item in items if (found := finite_number(item)) is not None}


def format_percent(value: float | None) -> str:
    """A score of 0..1 as the field writes it, times 100; nothing for None."""
    return "" if value is None else f"{100 * value:.1f}"


def join_words(words: Sequence[str]) -> str:
    """Words after each other: "a, b and c"."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else "".join(words)


def standard_error(scores: Iterable[float]) -> float | None:
    """The standard error of the mean; None for fewer than two scores."""
    found = list(scores)
    return statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Numbers = Annotated[dict[str, float], BeforeValidator(finite_numbers)]
StrictText = Annotated[str, Field(strict=True)]


class Record(BaseModel):
    """A JSON object; keys that it does not name are left alone."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @field_validator("*", mode="wrap")
    @classmethod
    def _absent_where_wrong(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        try:
            return check(value)
        except ValidationError:
            raise PydanticUseDefault from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """The record in a file, empty where there is none; raises `CheckpointError` for a damaged one."""
        return cls.model_validate(store.read_json(path) if path.is_file() else {})

    def as_json(self) -> dict[str, Any]:
        """What was set, as the file has it."""
        return self.model_dump(exclude_unset=True)

    def write(self, path: Path) -> None:
        """Write the file, in one rename."""
        store.write_json(path, self.as_json())


class Result(Record):
    """One task: a single run, the median of several seeds, or an ensemble (`kind`)."""

    kind: StrictText = ""
    task: StrictText = ""
    title: StrictText = ""
    metric: StrictText = "score"
    # of one run
    score: Number | None = None
    scores: Numbers = {}
    seed: int | None = None
    best_step: int | None = None
    best_threshold: Number | None = None
    labels: list[str] = []
    predictions: StrictText = ""  # the file that has them
    # of several seeds, each by its name
    median: Number | None = None
    spread: Number | None = None
    mean: Number | None = None
    stdev: Number | None = None
    standard_error: Number | None = None
    scores_by_seed: Numbers = {}
    all_scores: dict[str, list[Number]] = {}
    seeds: list[int] = []
    diverged: dict[str, str] | StrictText = {}  # by seed why; of a single run why
    collapsed: dict[str, str] | StrictText | None = None
    median_without_collapsed: Number | None = None
    # what they stand beside
    majority: Number | None = None
    baselines: dict[str, Numbers] = {}  # of each linear model every metric
    controls: dict[str, Result] = {}
    every_seed_above: bool | None = None
    # of an ensemble
    members: list[EnsembleMember] = []
    chosen: list[str] = []
    of_all: Numbers = {}
    gain: Numbers = {}
    # how they came about
    checkpoint: StrictText = ""
    intermediate: StrictText = ""  # the model of another task that it began with
    recipe: StrictText = ""
    data: StrictText = ""
    weights: StrictText = ""
    head: StrictText = ""
    intermediate_task: StrictText = ""
    intermediate_note: StrictText = ""
    versions: dict[str, str] = {}
    examples: dict[str, int] = {}
    train_examples: int = 0
    both_orders: bool = False
    steps: int | None = None
    epochs: Number | None = None
    batch_size: int | None = None
    lr: Number | None = None
    warmup_steps: int | None = None
    max_seq_length: int | None = None
    dropout: Number | None = None
    overlap_heads: int = 0
    overlap_context_heads: int = 0
    eval_every: int | None = None
    device: StrictText = ""
    precision: StrictText = ""
    seconds: Number | None = None

    @property
    def by_seed(self) -> dict[str, float]:
        """Every seed's score, of a single run its own."""
        if self.scores_by_seed or self.score is None:
            return self.scores_by_seed
        return {str(self.seed or 0): self.score}

    @property
    def medians(self) -> dict[str, float]:
        """Every metric: the median of the runs, or the score of a model that was not trained."""
        return {name: statistics.median(found) for name, found in self.all_scores.items() if found} or self.scores

    @property
    def divergence_reasons(self) -> dict[str, str]:
        """Why each seed without a score has none."""
        return self.diverged if isinstance(self.diverged, dict) else {}

    @property
    def collapse_reasons(self) -> dict[str, str]:
        """What shows that a seed learnt nothing, for each that did not; they count in the median all the same."""
        if isinstance(self.collapsed, str):
            return dict.fromkeys(self.by_seed, self.collapsed) if self.collapsed else {}
        return self.collapsed or {}

    @property
    def classical(self) -> tuple[str, float] | None:
        """The best of the linear models by the main metric, and its score."""
        found = {name: of[self.metric] for name, of in self.baselines.items() if self.metric in of}
        return max(found.items(), key=lambda item: item[1], default=None)


class EnsembleMember(Record):
    """A checkpoint of an ensemble."""

    directory: StrictText = ""
    score: Number | None = None


class SearchPoint(Result):
    """A combination of a search."""

    values: dict[str, str] = {}
    directory: StrictText = ""


class SearchResult(Result):
    """Every combination of some lists of hyper-parameters, and the best by dev."""

    points: list[SearchPoint] = []
    best: SearchPoint = SearchPoint()
    caveat: StrictText = ""
    budget: dict[str, int] = {}


class SuiteResult(Record):
    """All tasks of GLUE whose data were there, and one number for them."""

    kind: StrictText = ""
    tasks_scored: int = 0
    tasks: dict[str, Result] = {}
    left_out: dict[str, str] = {}
    glue_score: Number | None = None
    mean_of_tasks: Number | None = None
    diagnostics: Result | None = None
