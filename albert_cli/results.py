"""The records in `results.json`: one class per kind of result, told apart by the key `kind` and read strictly.

Evaluations write them; tables, reports and experiments read them. A file with an unknown key, a missing key or a value
of the wrong type raises `CheckpointError` with the file's name and the key.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from albert_cli import store

RESULTS = "results.json"
CROSS_VALIDATED = "cross_validated"  # of a baseline: its main metric on held-out parts of the training examples
CLASSICAL = "classical"  # the best linear model, among `EvaluationResult.differences`
CONTROLS = {"init": "same init", "random": "random weights"}  # initial weights of a control, and its title
Verdict = Literal["reached", "not reached", "diverged", "skipped"]


def best_baseline(baselines: Mapping[str, Mapping[str, float]], metric: str) -> tuple[str, float] | None:
    """Return the name and the dev score of the linear model that is best in cross-validation; None without models."""
    if not baselines:
        return None
    name = max(baselines, key=lambda name: baselines[name].get(CROSS_VALIDATED, 0.0))
    score = baselines[name].get(metric)
    return None if score is None else (name, score)


def standard_error(scores: Iterable[float]) -> float | None:
    """Return the standard error of the scores' mean; None for fewer than two scores."""
    values = list(scores)
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


class Record(BaseModel):
    """A JSON object with exactly these keys; a key whose value is None is left out of the file."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> dict[str, object]:
        """Return the record as plain JSON values."""
        return self.model_dump(mode="json", exclude_none=True)

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        store.write_json(path, self.to_json())


class Protocol(Record):
    """The training settings behind a score: a score is only meaningful together with them.

    `weights` are the initial weights ("pretrained", or the name of a control). `intermediate_task` is the task that the
    encoder was fine-tuned on first, if any; `intermediate_note` explains why the recipe's intermediate task was left
    out. `train_examples` is the number of training examples in each seed's subset, 0 for all of them.
    """

    steps: int
    epochs: float
    batch_size: int
    lr: float
    warmup_steps: int
    max_seq_length: int
    dropout: float
    eval_every: int
    weights: str
    head: str
    intermediate_task: str | None = None
    intermediate_note: str | None = None
    train_examples: int = 0
    both_orders: bool = False
    overlap_heads: int = 0
    overlap_context_heads: int = 0


class TaskResult(Record):
    """Facts that every result of one task has.

    `data` is the fingerprint of all examples, `examples` their number in each split, `majority` the main metric of a
    predictor that knows only the training labels.
    """

    task: str
    title: str
    metric: str
    labels: list[str] = []
    majority: float | None = None
    data: str
    examples: dict[str, int]
    versions: dict[str, str] = {}
    seconds: float

    @property
    def training(self) -> Protocol | None:
        """The protocol of training; None if nothing was trained."""
        return None

    @property
    def divergence_reasons(self) -> dict[str, str]:
        """The reason of each diverged seed."""
        return {}

    @property
    def collapse_reasons(self) -> dict[str, str]:
        """The reason of each collapsed seed."""
        return {}

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """The name and the score of the classical baseline."""
        return None


class SingleScoreResult(TaskResult):
    """One value of every metric; `score` is the value of the main one."""

    score: float
    scores: dict[str, float]

    @property
    def scores_by_seed(self) -> dict[str, float]:
        """The main metric; a result without a seed counts as seed 0."""
        return {"0": self.score}

    @property
    def medians(self) -> dict[str, float]:
        """Every metric."""
        return self.scores


class CheckpointResult(TaskResult):
    """Facts of every result that comes from one checkpoint.

    `checkpoint` and `intermediate` are fingerprints of directories; `intermediate` is the run on another task whose
    encoder was used. `recipe` is a hash of the resolved recipe without its seed.
    """

    checkpoint: str
    intermediate: str | None = None
    recipe: str
    device: str
    precision: str

    @property
    def parents(self) -> dict[str, str]:
        """The fingerprints of what the result was computed from, by name."""
        parents = {"checkpoint": self.checkpoint, "intermediate": self.intermediate, "data": self.data}
        return {name: fingerprint for name, fingerprint in parents.items() if fingerprint is not None}


class RunResult(SingleScoreResult, CheckpointResult):
    """One fine-tuning run with one seed; `collapsed` is the reason if the run counts as collapsed."""

    kind: Literal["run"] = "run"
    best_threshold: float | None = None
    seed: int
    best_step: int
    collapsed: str | None = None
    protocol: Protocol

    @property
    def scores_by_seed(self) -> dict[str, float]:
        """The main metric of the run's seed."""
        return {str(self.seed): self.score}

    @property
    def training(self) -> Protocol:
        """The protocol of training."""
        return self.protocol

    @property
    def collapse_reasons(self) -> dict[str, str]:
        """The reason of the seed, if it collapsed."""
        return {} if self.collapsed is None else {str(self.seed): self.collapsed}


class ScoredResult(SingleScoreResult, CheckpointResult):
    """A task checkpoint scored without training."""

    kind: Literal["scored"] = "scored"
    best_threshold: float | None = None
    max_seq_length: int


class ScoreDifference(Record):
    """The lead of the main metric over that of another model with the same seeds, as the mean over the seeds.

    `low` and `high` bound a 95 % interval; the standard error includes seeds and dev examples.
    """

    difference: float
    standard_error: float
    low: float
    high: float
    seeds: int


class SeedSummary(Record):
    """The main metric over several seeds; `median` is None if every seed diverged.

    `diverged` and `collapsed` give the reason for each such seed. A diverged seed has no score; a collapsed one has.
    """

    median: float | None = None
    spread: float | None = None
    stdev: float | None = None
    standard_error: float | None = None
    scores_by_seed: dict[str, float] = {}
    diverged: dict[str, str] = {}
    collapsed: dict[str, str] = {}


class ControlResult(SeedSummary):
    """A control: the same seeds fine-tuned from other initial weights.

    `every_seed_above` tells whether every pretrained seed scores above every seed of the control; None without scores.
    """

    every_seed_above: bool | None = None


class EvaluationResult(CheckpointResult):
    """The median over several fine-tuning runs that differ only in their seed.

    `baselines` has every metric of each linear model, `all_scores` every metric of each seed that finished.
    `differences` compares the model with the classical baseline ("classical") and with each control.
    """

    kind: Literal["eval"] = "eval"
    median: float
    spread: float
    mean: float
    stdev: float
    standard_error: float | None = None
    median_without_collapsed: float | None = None
    scores_by_seed: dict[str, float]
    all_scores: dict[str, list[float]]
    seeds: list[int]
    diverged: dict[str, str] = {}
    collapsed: dict[str, str] = {}
    protocol: Protocol
    baselines: dict[str, dict[str, float]] = {}
    controls: dict[str, ControlResult] = {}
    differences: dict[str, ScoreDifference] = {}

    @property
    def training(self) -> Protocol:
        """The protocol of training, which all seeds share."""
        return self.protocol

    @property
    def divergence_reasons(self) -> dict[str, str]:
        """The reason of each diverged seed."""
        return self.diverged

    @property
    def medians(self) -> dict[str, float]:
        """Every metric's median over the seeds."""
        return {name: statistics.median(scores) for name, scores in self.all_scores.items()}

    @property
    def collapse_reasons(self) -> dict[str, str]:
        """The reason of each collapsed seed."""
        return self.collapsed

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """The linear model that cross-validation on the training examples chooses: its name and its score."""
        return best_baseline(self.baselines, self.metric)


class EnsembleMember(Record):
    """A checkpoint of an ensemble with its own score."""

    directory: str
    score: float


class EnsembleGain(Record):
    """Differences in score between ensembles and single members."""

    all_over_median: float
    all_over_best: float
    chosen_over_best: float


class EnsembleResult(SingleScoreResult):
    """Several task checkpoints that answer together.

    `scores` belong to the members in `chosen`, which the dev set selected, `scores_of_all` to all members.
    """

    kind: Literal["ensemble"] = "ensemble"
    scores_of_all: dict[str, float]
    members: list[EnsembleMember]
    chosen: list[str]
    gain: EnsembleGain


class SearchPoint(SeedSummary):
    """One combination of hyperparameters and its scores; `directory` is relative to the search's output."""

    values: dict[str, str]
    directory: str
    seconds: float = 0.0


class SearchBudget(Record):
    """The amount of training in a search, finished runs included."""

    combinations: int
    runs: int
    steps: int


class SearchResult(TaskResult):
    """Every combination of a hyperparameter search; `best` is the one with the highest median on dev."""

    kind: Literal["search"] = "search"
    checkpoint: str
    points: list[SearchPoint]
    best: SearchPoint
    caveat: str
    budget: SearchBudget


class SuiteResult(Record):
    """All GLUE tasks whose data are available, and their mean.

    The mean is `glue_score` if no task was left out, else `mean_of_tasks`. `left_out` gives the reason for each task.
    """

    kind: Literal["suite"] = "suite"
    tasks: dict[str, Annotated[ScoredResult | EvaluationResult, Field(discriminator="kind")]]
    tasks_scored: int
    left_out: dict[str, str] = {}
    glue_score: float | None = None
    mean_of_tasks: float | None = None
    diagnostics: Annotated[ScoredResult | EvaluationResult, Field(discriminator="kind")] | None = None


class TaskVerdict(Record):
    """A task's scores compared with published ones, times 100; `reason` says why there are no scores."""

    verdict: Verdict
    published: dict[str, float]
    tolerance: float
    scores: dict[str, float] = {}
    runs: int | None = None
    reason: str | None = None


class VerifyResult(Record):
    """A published checkpoint, evaluated and compared with its published scores.

    `average` has the mean over the evaluated tasks: `published`, and `measured` here.
    """

    kind: Literal["verify"] = "verify"
    recipe: str
    checkpoint: str
    source: str
    tasks: dict[str, TaskVerdict]
    average: dict[str, float]
    reached: bool


# The score of one task, whatever produced it.
TaskScore = Annotated[RunResult | ScoredResult | EvaluationResult | EnsembleResult, Field(discriminator="kind")]
AnyResult = RunResult | ScoredResult | EvaluationResult | EnsembleResult | SearchResult | SuiteResult | VerifyResult
KINDS = ("run", "scored", "eval", "ensemble", "search", "suite", "verify")


class TaskScoreRecord(RootModel[TaskScore]):
    """The score of one task as a part of another record."""


class _ResultFile(RootModel[Annotated[AnyResult, Field(discriminator="kind")]]):
    """A `results.json` of any kind."""


def read_result(path: Path) -> AnyResult:
    """Read a `results.json`; raises `CheckpointError` that names the file and the key that is wrong."""
    return store.read_record(path, _ResultFile).root
