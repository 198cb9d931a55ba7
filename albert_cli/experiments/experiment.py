"""Define the records of an experiment: its variants, the scales to run them at, and the paper's tables and claims.

The module `recipe` reads and checks them. A variant is a set of changes to the scale's base recipe, so two variants
differ only in these changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from albert_cli.config import RecipeValues
from albert_cli.experiments.metrics import (
    COLUMN_METRICS,
    EXACT,
    LEARNED_ABOVE,
    SMALLEST_DIFFERENCE,
    is_score,
    list_tasks,
)

ScaleName = Literal["smoke", "mini", "h200", "paper"]
SCALES: Final[tuple[ScaleName, ...]] = get_args(ScaleName)

_SIGNS: Final = {"above": ">", "below": "<", "equal": "="}  # how a condition is printed


@dataclass(frozen=True)
class ExperimentScale:
    """The size of an experiment: base recipe, text, tasks and seeds; see `recipes/experiments/common.toml`."""

    about: str
    base: str
    """The pretraining recipe that variants change."""
    changes: RecipeValues = field(default_factory=dict)
    """Changes to the base recipe, applied before the variant's changes."""
    borrow: ScaleName | None = None
    """The scale to borrow from.

    The variants' changes for that scale apply at this scale, and this scale's `variants`, `changes` and `extra_text`
    default to that scale's.
    """
    step_fraction: float = 1.0
    """The fraction of a variant's pretraining steps that this scale runs."""
    text: tuple[str, ...] = ("docs:",)
    extra_text: tuple[str, ...] = ()
    """Additional text that some variants train on."""
    alternative_text: tuple[str, ...] = ()
    """Sources that a message suggests if the text cannot be read."""
    probe_text: tuple[str, ...] = ()
    """The sources of the text on which intrinsic scores are computed, such as `squad:TASKS/squad/dev-v1.1.json`.

    TASKS is the folder of `--tasks`. Without sources, the scores are computed on the held-out text.
    """
    vocabulary: int = 30_000
    """The number of tokens in the vocabulary."""
    sample: int = 2_000_000
    """The number of sentences that the vocabulary is trained on."""
    holdout: float = 0.01
    """The fraction of the documents that is held out."""
    seeds: int = 1
    """Pretraining runs of each variant; `--seeds` replaces this number."""
    variants: tuple[str, ...] = ()
    """The variants to measure; empty for all. The runs that they start or distil from are trained, too."""
    tasks: tuple[str, ...] = ()
    """The tasks to fine-tune on, and `minimal-pairs`, which a probe scores."""
    task_runs: int = 1
    """Fine-tuning runs of a task for each pretrained model."""
    task_changes: RecipeValues = field(default_factory=dict)
    """Changes to the recipes of the tasks."""
    probe_sequences: int = 4096
    """Sequences that intrinsic scores are computed on."""
    peak: float = 790e12
    """FLOP/s that a device reaches in matmuls, for the hours of a plan; the default is an H200's."""
    utilization: float = 0.5
    """The fraction of `peak` that training is assumed to reach."""


@dataclass(frozen=True)
class Variant:
    """A row of an experiment's table, as changes to the scale's base recipe."""

    title: str
    changes: RecipeValues = field(default_factory=dict)
    """Changes at every scale."""
    smoke: RecipeValues = field(default_factory=dict)
    mini: RecipeValues = field(default_factory=dict)
    h200: RecipeValues = field(default_factory=dict)
    paper: RecipeValues = field(default_factory=dict)
    """`smoke` to `paper` are changes at one scale, which may name another base recipe in the key `extends`."""
    after: str | None = None
    """The variant whose run with the same seed gives the initial weights."""
    continues: bool = False
    """Resume the run of `after`, with its optimizer state and its step, instead of only taking its weights."""
    stacked: bool = False
    """Initialize the layers by repeating the layers of `after`."""
    teacher: str | None = None
    """The variant to distil from."""
    members: tuple[str, ...] = ()
    """The variants whose fine-tuned models form an ensemble (`albert ensemble`). An ensemble is not pretrained."""
    match_time_of: str | None = None
    """The variant whose wall-clock time determines the number of steps."""
    text: Literal["usual", "extra"] = "usual"
    """The text to train on: the scale's `text`, or `extra` for `text` and `extra_text`."""
    shape: str | None = None
    """A preset whose parameters `albert params` counts; nothing is trained."""
    is_measured: bool = True
    """False for a run that only serves other variants as their start; it is no row of the table."""
    has_tasks: bool = True
    """False to compute only intrinsic scores."""

    def changes_at(self, scale: ScaleName) -> RecipeValues:
        """Return the changes that apply at this scale only."""
        by_scale = {"smoke": self.smoke, "mini": self.mini, "h200": self.h200, "paper": self.paper}
        return by_scale[scale]

    @property
    def dependencies(self) -> tuple[str, ...]:
        """The variants that are trained before this one.

        `match_time_of` is not among them, because `albert bench` measures its time.
        """
        return tuple(name for name in (self.after, self.teacher, *self.members) if name)


@dataclass(frozen=True)
class PaperTable:
    """A table as printed in the paper. The name of a row is a variant, or the paper's name of another model."""

    title: str
    version: Literal["both versions", "final version", "version 1"]
    """The versions of the paper on arXiv that have this table."""
    columns: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    note: str = ""
    compare_with: str | None = None
    """The variant that is compared with the rows of other models."""
    metrics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Metrics by column, where this table differs from `COLUMN_METRICS`: F1 for MRPC, for example."""

    def column_metrics(self, column: str) -> tuple[str, ...]:
        """Return the metrics that a column shows: two for SQuAD, none for a column that no experiment measures."""
        return self.metrics.get(column, COLUMN_METRICS.get(column, ()))

    @property
    def tasks(self) -> frozenset[str]:
        """The names of the tasks with a column."""
        return list_tasks(metric for column in self.columns for metric in self.column_metrics(column))


def split_reference(reference: str) -> tuple[str, str]:
    """Split a measured value's name, `VARIANT.METRIC`, into variant and metric; the metric is "" if there is no dot."""
    variant, _, metric = reference.partition(".")
    return variant, metric


@dataclass(frozen=True)
class Condition:
    """A comparison of a measured quantity, the left side, with a bound.

    The left side is `value`, minus all of `minus`, plus all of `plus`, and this sum divided by `over`. Measured values
    are written `VARIANT.METRIC`. The bound is a number or another measured value.
    """

    value: str
    must: Literal["above", "below", "equal"]
    bound: float | str
    minus: tuple[str, ...] = ()
    plus: tuple[str, ...] = ()
    over: str | None = None

    @property
    def references(self) -> tuple[str, ...]:
        """The names of the measured values in the condition."""
        bound = self.bound if isinstance(self.bound, str) else None
        return tuple(name for name in (self.value, *self.minus, *self.plus, self.over, bound) if name)

    @property
    def metrics(self) -> frozenset[str]:
        """The metrics of all measured values in the condition."""
        return frozenset(split_reference(name)[1] for name in self.references)

    @property
    def is_exact(self) -> bool:
        """True if all measured values are counts, which have no error."""
        return self.metrics <= EXACT

    @property
    def smallest_difference(self) -> float:
        """The difference up to which `claims._decide` counts an uncertain difference of two scores as a failure.

        It is half a point if one score must be higher or lower than another, and 0 for other conditions.
        """
        if self.bound == 0 and self.minus and all(map(is_score, self.metrics)):
            return SMALLEST_DIFFERENCE
        return 0.0

    def __str__(self) -> str:
        left = "".join([self.value, *(f" − {name}" for name in self.minus), *(f" + {name}" for name in self.plus)])
        if self.over:
            left = f"{left} / {self.over}"
        bound = self.bound if isinstance(self.bound, str) else f"{self.bound:,.12g}"
        return f"{left} {_SIGNS[self.must]} {bound}"


@dataclass(frozen=True)
class PaperClaim:
    """A statement of the paper, written as conditions that must all hold."""

    statement: str
    source: str
    """The table or section of the paper, with the numbers that it reports."""
    margin: str
    """Text, not a number: why the conditions have their bounds."""
    conditions: tuple[Condition, ...]
    learned: tuple[str, ...] = ()
    """Measured values that must exceed `LEARNED_ABOVE`, because models that have learned nothing differ by chance."""
    scales: tuple[ScaleName, ...] = ()
    """The scales at which the claim is tested; empty for all."""

    @property
    def all_conditions(self) -> tuple[Condition, ...]:
        """The conditions for the values in `learned`, and then the conditions of the statement."""
        learned = (Condition(name, "above", LEARNED_ABOVE[split_reference(name)[1]]) for name in self.learned)
        return (*learned, *self.conditions)

    @property
    def metrics(self) -> frozenset[str]:
        """The metrics of all conditions."""
        return frozenset(metric for condition in self.all_conditions for metric in condition.metrics)

    @property
    def variants(self) -> frozenset[str]:
        """All variants in the conditions."""
        references = (name for condition in self.all_conditions for name in condition.references)
        return frozenset(split_reference(name)[0] for name in references)

    @property
    def compares_tasks(self) -> bool:
        """True if a condition has a score of tasks: a metric such as `task_NAME` or `tasks_mean`."""
        return any(metric.startswith("task") for condition in self.conditions for metric in condition.metrics)


@dataclass(frozen=True)
class Experiment:
    """The content of an experiment's file: variants, scales, and the paper's tables and claims."""

    title: str
    source: str
    """The tables, figures or sections of the paper that the experiment repeats."""
    scales: dict[str, ExperimentScale]
    variants: dict[str, Variant]
    tables: tuple[PaperTable, ...] = ()
    claims: tuple[PaperClaim, ...] = ()
    plots: tuple[Literal["layers"], ...] = ()
    """Additional figures of the report; `layers` is Figure 1 of the paper."""
    metrics: tuple[str, ...] = ()
    """Columns of our table in addition to the tasks."""
    speed_against: str | None = None
    """The variant whose speed is 1 in the metric `speedup`."""
    name: str = ""
    """The stem of the file's name, which names the report's folder."""
    argument: str = ""
    """The experiment on the command line, by name or by path."""

    @property
    def is_counted(self) -> bool:
        """True if nothing is trained: every variant is a preset whose parameters are counted."""
        return all(variant.shape is not None for variant in self.variants.values())
