"""Define the records in `results.json`: one class for each kind of result, which the key `kind` distinguishes.

Evaluations write these files, and tables, reports and experiments read them. A file with an unknown key, a missing key
or a value of the wrong type raises `CheckpointError` with the name of the file and the key. The main metric of a task
is the one by which models are compared. Scores are between 0 and 1, correlations between -1 and 1.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from albert_cli import store
from albert_cli.score_summary import best_baseline

RESULTS = "results.json"
CLASSICAL = "classical"  # key of the best baseline in `EvaluationResult.differences`
CONTROLS = {"init": "same init", "random": "random weights"}  # titles of the controls, by their initial weights
_Seed = Annotated[str, Field(pattern="^[0-9]+$")]  # JSON has only strings as keys


class Record(BaseModel):
    """The base class of records: a JSON object whose keys are the class's fields, without those that are None."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    def to_json(self) -> dict[str, object]:
        """Return the record as plain JSON values."""
        return self.model_dump(mode="json", exclude_none=True)

    def write(self, path: Path) -> None:
        """Write the file atomically."""
        store.write_json(path, self.to_json())


class Protocol(Record):
    """The training settings of a score; scores are comparable only if these settings are equal.

    `weights` are the initial weights ("pretrained", or a key of `CONTROLS`). `intermediate_task` is the task on which
    the encoder was fine-tuned first, if any. If the recipe's intermediate task was left out, `intermediate_note` has
    the reason. `train_examples` and `dev_examples` are the sizes of the training subset and of the dev subset (0: all).
    With `both_orders` the training pairs were also used with their texts swapped. `overlap_heads` and
    `overlap_context_heads` are the numbers of heads that the recipe's keys of the same names initialize.
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
    dev_examples: int = 0
    both_orders: bool = False
    overlap_heads: int = 0
    overlap_context_heads: int = 0


class TaskResult(Record):
    """The fields that every result of one task has.

    `metric` is the name of the main metric. `majority` is its value for a predictor that knows nothing but the labels
    of the training examples; of several seeds, which may differ in these examples, it is the median. `data` is the
    fingerprint of the class names and of all examples by split, and `examples` the number of examples in each split.

    The properties have the values of a result without training; results of training override them.
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
    def collapse_reasons(self) -> dict[str, str]:
        """The reason for each collapsed seed, by seed."""
        return {}

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """The name and the score of the best linear model; None without linear models."""
        return None


class SingleScoreResult(TaskResult):
    """A result with one value of every metric, `scores`; `score` is the value of the main metric."""

    score: float
    scores: dict[str, float]

    @property
    def scores_by_seed(self) -> dict[str, float]:
        """The main metric by seed; a result without a seed counts as seed 0."""
        return {"0": self.score}

    @property
    def medians(self) -> dict[str, float]:
        """The only value of every metric, which is also its median."""
        return self.scores


class CheckpointResult(TaskResult):
    """The fields of every result that comes from one checkpoint.

    `checkpoint` is the fingerprint of the checkpoint's directory, and `intermediate` that of the run on the
    intermediate task, if any. `recipe` is a hash of the resolved recipe without its seed.
    """

    checkpoint: str
    intermediate: str | None = None
    recipe: str
    device: str
    precision: str

    @property
    def parents(self) -> dict[str, str]:
        """The fingerprints of the result's inputs, by role, for the manifest."""
        parents = {"checkpoint": self.checkpoint, "intermediate": self.intermediate, "data": self.data}
        return {name: fingerprint for name, fingerprint in parents.items() if fingerprint is not None}


class RunResult(SingleScoreResult, CheckpointResult):
    """One fine-tuning run with one seed; `collapsed` is the reason if the run counts as collapsed, else None."""

    kind: Literal["run"] = "run"
    best_threshold: float | None = None
    seed: int
    best_step: int
    collapsed: str | None = None
    protocol: Protocol

    @property
    def scores_by_seed(self) -> dict[str, float]:
        """The main metric, by the run's seed."""
        return {str(self.seed): self.score}

    @property
    def training(self) -> Protocol:
        """The protocol of training."""
        return self.protocol

    @property
    def collapse_reasons(self) -> dict[str, str]:
        """The reason for the run's seed, if it collapsed."""
        return {} if self.collapsed is None else {str(self.seed): self.collapsed}


class ScoredResult(SingleScoreResult, CheckpointResult):
    """A task checkpoint scored without training."""

    kind: Literal["scored"] = "scored"
    best_threshold: float | None = None
    max_seq_length: int


class ScoreDifference(Record):
    """The mean difference between this model's main metric and another model's over the same seeds.

    `low` and `high` bound a 95 % confidence interval, which includes the choice of seeds and of dev examples. With one
    seed, the interval and `standard_error` include only the choice of dev examples.
    """

    difference: float
    standard_error: float
    low: float
    high: float
    seeds: int


class SeedSummary(Record):
    """The main metric over several seeds; `median` is None if every seed diverged.

    `spread` is the highest score minus the lowest. `diverged` and `collapsed` have reasons by seed. Only a diverged
    seed has no score.
    """

    median: float | None = None
    spread: float | None = None
    stdev: float | None = None
    standard_error: float | None = None
    scores_by_seed: dict[_Seed, float] = {}
    diverged: dict[str, str] = {}
    collapsed: dict[str, str] = {}


class ControlResult(SeedSummary):
    """A control: the same seeds fine-tuned from other initial weights.

    `every_seed_above`: True if every seed of the pretrained model scores above all seeds of the control; None without
    scores.
    """

    every_seed_above: bool | None = None


class EvaluationResult(CheckpointResult):
    """The result of several fine-tuning runs that differ only in their seed.

    It has every field of `SeedSummary`, but here at least one seed has a score. The fields from `median` to
    `scores_by_seed` are of the main metric. `all_scores` has the values of every metric, one for each seed that
    finished. `baselines` has the values of every metric by linear model. `differences` compares the model with the best
    linear model (`CLASSICAL`) and with each control.
    """

    kind: Literal["eval"] = "eval"
    median: float
    spread: float
    mean: float
    stdev: float
    standard_error: float | None = None
    median_without_collapsed: float | None = None
    scores_by_seed: Annotated[dict[_Seed, float], Field(min_length=1)]
    all_scores: dict[str, Annotated[list[float], Field(min_length=1)]]
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
    def medians(self) -> dict[str, float]:
        """The median of every metric over the seeds."""
        return {name: statistics.median(scores) for name, scores in self.all_scores.items()}

    @property
    def collapse_reasons(self) -> dict[str, str]:
        """The reason for each collapsed seed, by seed."""
        return self.collapsed

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """The name and the score of the linear model that is best in cross-validation; None without linear models."""
        return best_baseline(self.baselines, self.metric)


class EnsembleMember(Record):
    """A checkpoint of an ensemble with the score that it has alone."""

    directory: str
    score: float


class EnsembleGain(Record):
    """Gains in the main metric: all members, or the chosen ones, averaged, over the median or best single member."""

    all_over_median: float
    all_over_best: float
    chosen_over_best: float


class EnsembleResult(SingleScoreResult):
    """Several task checkpoints whose outputs are averaged.

    `score` and `scores` are those of the ensemble of the members in `chosen`, which the dev set selected.
    `scores_of_all` are those of the ensemble of all members.
    """

    kind: Literal["ensemble"] = "ensemble"
    scores_of_all: dict[str, float]
    members: list[EnsembleMember]
    chosen: list[str]
    gain: EnsembleGain


class SearchPoint(SeedSummary):
    """One combination of hyperparameters, `values`, and its scores; `directory` is relative to the search's output."""

    values: dict[str, str]
    directory: str
    seconds: float = 0.0


class SearchBudget(Record):
    """The amount of training in a search, finished runs included."""

    combinations: int
    runs: int
    steps: int


class SearchResult(TaskResult):
    """Every combination of a hyperparameter search; `caveat` warns that `best` was selected by its score on dev."""

    kind: Literal["search"] = "search"
    checkpoint: str
    points: list[SearchPoint]
    best: SearchPoint
    caveat: str
    budget: SearchBudget


class SuiteResult(Record):
    """The results of all GLUE tasks whose data are available, and the mean of their scores.

    The mean is `glue_score` if no task was left out, else `mean_of_tasks`. `left_out` has the reason for each task that
    was left out. `diagnostics` is the result on GLUE's diagnostic set, which is not in the mean.
    """

    kind: Literal["suite"] = "suite"
    tasks: dict[str, Annotated[ScoredResult | EvaluationResult, Field(discriminator="kind")]]
    tasks_scored: int
    left_out: dict[str, str] = {}
    glue_score: float | None = None
    mean_of_tasks: float | None = None
    diagnostics: Annotated[ScoredResult | EvaluationResult, Field(discriminator="kind")] | None = None


class TaskVerdict(Record):
    """A task's scores compared with published ones, all times 100; `reason` is the reason if there are no scores."""

    verdict: Literal["reached", "not reached", "diverged", "skipped"]
    published: dict[str, float]
    tolerance: float
    scores: dict[str, float] = {}
    runs: int | None = None  # seeds; None if nothing was trained
    reason: str | None = None


class VerifyResult(Record):
    """A published checkpoint, evaluated and compared with its published scores.

    `average` has two means over the evaluated tasks: that of the "published" scores, and that of the "measured" ones.
    `reached` is True if no task is below its published score by more than the tolerance.
    """

    kind: Literal["verify"] = "verify"
    recipe: str
    checkpoint: str
    source: str
    tasks: dict[str, TaskVerdict]
    average: dict[str, float]
    reached: bool


# The results with the score of a single task
TaskScore = Annotated[RunResult | ScoredResult | EvaluationResult | EnsembleResult, Field(discriminator="kind")]
AnyResult = RunResult | ScoredResult | EvaluationResult | EnsembleResult | SearchResult | SuiteResult | VerifyResult
# The key `kind` of every result in `AnyResult`. Other commands write files of the same name with other kinds.
KINDS = ("run", "scored", "eval", "ensemble", "search", "suite", "verify")


class TaskScoreRecord(RootModel[TaskScore]):
    """A `TaskScore` as a class, which a generic record such as `StageRecord` of the experiments needs."""


class _ResultFile(RootModel[Annotated[AnyResult, Field(discriminator="kind")]]):
    """A `results.json` of any kind."""


def read_result(path: Path) -> AnyResult:
    """Read a `results.json` of any kind; raise `CheckpointError` if a key is missing, unknown or of the wrong type."""
    return store.read_record(path, _ResultFile).root
