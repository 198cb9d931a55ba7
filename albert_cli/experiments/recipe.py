"""An experiment as a recipe: variants of a base recipe, the scales it can be run at, the paper's numbers, its claims.

`recipes/experiments/*.toml` hold them; `experiments/common` says what the scales have in common. A variant is a few
changes of the scale's base recipe, so that two variants differ by nothing that is not written there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from albert_cli import config
from albert_cli.errors import ConfigError

ScaleName = Literal["smoke", "mini", "h200", "paper"]
SCALES: Final[tuple[ScaleName, ...]] = get_args(ScaleName)
FOLDER: Final = "experiments/"

Settings = dict[str, Any]
_SIGNS: Final = {"above": ">", "below": "<", "equal": "="}

# What is measured of a variant, and how a column of it is headed; beside these there is `task_NAME` of every task.
METRICS: Final = {
    "parameters": "parameters",
    "paper_count": "as the paper counts",
    "block_parameters": "in blocks",
    "layers": "layers",
    "hidden": "hidden",
    "steps": "steps",
    "seconds": "pretraining",
    "speedup": "speedup",
    "mlm_accuracy": "MLM",
    "own_mlm_accuracy": "MLM, own masks",
    "mlm_loss": "MLM loss",
    "below_unigram_entropy": "below unigram",
    "nsp_accuracy": "NSP",
    "sop_accuracy": "SOP",
    "l2_mean": "L2",
    "l2_variation": "L2 variation",
    "l2_last": "L2, last",
    "degrees_mean": "angle",
    "degrees_variation": "angle variation",
    "degrees_last": "angle, last",
    "tasks_mean": "mean",
    "tasks_above_majority": "above the majority",
}


# Values of models that have learnt nothing differ too, so that a claim must rest on a model that has. Knowing how
# frequent tokens are and copying unmasked ones give half a nat; of two sentences the paper calls 53.3 % chance.
LEARNED_ABOVE: Final = {
    "tasks_above_majority": 0.03,
    "below_unigram_entropy": 0.75,
    "nsp_accuracy": 0.535,
    "sop_accuracy": 0.535,
}
# The same for every seed by construction.
EXACT: Final = frozenset({"parameters", "block_parameters", "paper_count", "steps", "layers", "hidden"})
_OF_ANY_MODEL: Final = EXACT | {"seconds", "speedup"}  # needs no learning
# What stands in a column of the paper's tables, where it is measured; scores there are in per cent.
COLUMN_METRICS: Final = {
    "SQuAD1.1": ("task_squad1_f1", "task_squad1_em"),
    "SQuAD2.0": ("task_squad2_best_f1", "task_squad2_best_em"),
    "RACE": ("task_race",),
    "Avg": ("tasks_mean",),
    "speedup": ("speedup",),
    **{name: (f"{name.lower()}_accuracy",) for name in ("MLM", "NSP", "SOP")},
    **{name: (f"task_{name.lower().replace('-', '')}",) for name in (
        "MNLI", "QNLI", "QQP", "RTE", "SST-2", "MRPC", "CoLA", "STS-B",
    )},
}  # fmt: skip


@dataclass(frozen=True)
class ExperimentScale:
    """What an experiment is at one scale.

    `base` is a pretraining recipe and `changes` lie on it, below each variant's own. `borrow` takes the variants'
    changes of another scale, and `step_share` of its steps. `text` is the default corpus, `extra_text` what a variant
    may add, `other_text` names what may stand in for them. `probe_text` is asked for intrinsic scores instead of the
    corpus's held-out text, where its files are there; TASKS in it is the folder of the tasks. `tasks` are fine-tuned
    `task_runs` times each, with `task_changes` laid on their own recipes. `peak` is a device's FLOP/s and `share` what
    training is assumed to reach of it; both serve the plan alone.
    """

    about: str
    base: str
    changes: Settings = field(default_factory=dict)
    borrow: ScaleName | None = None
    step_share: float = 1.0
    text: tuple[str, ...] = ("docs:",)
    extra_text: tuple[str, ...] = ()
    other_text: tuple[str, ...] = ()
    probe_text: tuple[str, ...] = ()
    vocabulary: int = 30_000
    sample: int = 2_000_000
    holdout: float = 0.01
    seeds: int = 1
    variants: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    task_runs: int = 1
    task_changes: Settings = field(default_factory=dict)
    probe_sequences: int = 4096
    peak: float = 790e12
    share: float = 0.5


@dataclass(frozen=True)
class Variant:
    """One row of an experiment's table.

    `changes` hold at every scale, those named after a scale there only, on top; `extends` among the latter names
    another base recipe. `after` starts from the end of another variant's run with the same seed: from its weights, or
    with `continues` also from its moments and step, so that the steps count from that run's beginning, and with
    `stacked` with its layers repeated. `teacher` names a variant to learn from beside the text. `time_of` trains
    as long as another variant does: seconds a step of both are measured before, and the steps frozen. `text = "extra"`
    trains on the additional text too. `shape` is only counted, as `albert params` takes it. `is_prefix`: a run that
    others start from, and no row of the table. Without `has_tasks` it is not fine-tuned. `members` are variants whose
    fine-tuned models of the same pretraining seed answer together (`albert ensemble`), each a run of its own.
    """

    title: str
    changes: Settings = field(default_factory=dict)
    smoke: Settings = field(default_factory=dict)
    mini: Settings = field(default_factory=dict)
    h200: Settings = field(default_factory=dict)
    paper: Settings = field(default_factory=dict)
    after: str | None = None
    continues: bool = False
    stacked: bool = False
    teacher: str | None = None
    members: tuple[str, ...] = ()
    time_of: str | None = None
    text: Literal["usual", "extra"] = "usual"
    shape: str | None = None
    is_prefix: bool = False
    has_tasks: bool = True


@dataclass(frozen=True)
class PaperTable:
    """A table as the paper prints it; `rows` by variant, or by what the paper calls a row without a variant here.

    `ours` is the variant that such rows are compared with.
    """

    title: str
    version: Literal["both versions", "final version", "version 1"]
    columns: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    note: str = ""
    ours: str | None = None


@dataclass(frozen=True)
class Condition:
    """`value` (minus or over another) must lie above, below or at `bound`; values are written `VARIANT.METRIC`.

    The bound is a number, or the value of a count.
    """

    value: str
    must: Literal["above", "below", "equal"]
    bound: float | str
    minus: str | None = None
    over: str | None = None

    @property
    def references(self) -> tuple[str, ...]:
        """The values that are read from result files."""
        bound = self.bound if isinstance(self.bound, str) else None
        return tuple(name for name in (self.value, self.minus, self.over, bound) if name)

    def __str__(self) -> str:
        left = self.value
        if self.minus:
            left = f"{self.value} − {self.minus}"
        if self.over:
            left = f"{self.value} / {self.over}"
        bound = self.bound if isinstance(self.bound, str) else f"{self.bound:,.12g}"
        return f"{left} {_SIGNS[self.must]} {bound}"


@dataclass(frozen=True)
class PaperClaim:
    """What the paper says, as conditions that all must hold; `margin` says where their bounds come from.

    `learnt` names values of `LEARNT` that show that the models which the claim rests on have learnt something: without
    that it does not hold. `scales` are those at which what is compared is run; none named: all.
    """

    says: str
    source: str
    margin: str
    conditions: tuple[Condition, ...]
    learnt: tuple[str, ...] = ()
    scales: tuple[ScaleName, ...] = ()

    @property
    def all_conditions(self) -> tuple[Condition, ...]:
        """What must hold: that something was learnt, and what the paper says."""
        guards = (Condition(name, "above", LEARNED_ABOVE[name.partition(".")[2]]) for name in self.learnt)
        return (*guards, *self.conditions)

    @property
    def is_of_tasks(self) -> bool:
        """Whether it compares what fine-tuned models make of tasks."""
        return any(".task" in name for condition in self.conditions for name in condition.references)


@dataclass(frozen=True)
class Experiment:
    """A whole recipe; see the module. `name` is that of its file, and `asked` its name or path."""

    title: str
    source: str
    scales: dict[str, ExperimentScale]
    variants: dict[str, Variant]
    tables: tuple[PaperTable, ...] = ()
    claims: tuple[PaperClaim, ...] = ()
    plots: tuple[Literal["layers"], ...] = ()  # beside what every report draws: Figure 1
    metrics: tuple[str, ...] = ()
    speed_against: str | None = None
    name: str = ""
    asked: str = ""

    @property
    def is_counted(self) -> bool:
        """Whether nothing is trained: every variant is a shape whose parameters are counted."""
        return all(v.shape is not None for v in self.variants.values())


def experiment_names() -> list[str]:
    """Every experiment that is shipped, by name."""
    found = (full.removeprefix(FOLDER) for full in config.shipped_recipes() if full.startswith(FOLDER))
    return [name for name in found if name != "common"]


def list_experiments() -> tuple[dict[str, str], str]:
    """Every experiment with a sentence, as data and as text."""
    found = {name: config.read_description(config.find_recipe(FOLDER + name)) for name in experiment_names()}
    width = max(map(len, found))
    return found, "\n".join(f"{name:<{width}}  {about}" for name, about in found.items())


def load_experiment(name: str) -> Experiment:
    """Read and check an experiment by name or file; raises `ConfigError` naming what is wrong."""
    asked = name
    if not name.endswith(".toml"):
        name = name.removeprefix(FOLDER)
        if name not in experiment_names():
            hint = config.suggest(name, experiment_names())
            raise ConfigError(
                f"no experiment is called {name!r}", hint or f"experiments: {', '.join(experiment_names())}"
            )
        name = FOLDER + name
    return dataclasses.replace(parse_experiment(config.read_recipe(name), config.find_recipe(name).stem), asked=asked)


def parse_experiment(values: Mapping[str, Any], name: str) -> Experiment:
    """An experiment from its values as TOML gives them; a scale that borrows has the other's changes below its own."""
    scales: Any = values.get("scales", {})
    if isinstance(scales, Mapping) and all(isinstance(own, Mapping) for own in scales.values()):
        borrowed = {}
        for key, own in scales.items():
            other = scales.get(str(own.get("borrow")), {})
            below = {k: other[k] for k in ("variants", "changes", "extra_text") if k in other}
            borrowed[key] = config.merge_values(below, own)
        values = {**values, "scales": borrowed}
    experiment = dataclasses.replace(config.validate_recipe(Experiment, values, name), name=name)
    _check(experiment)
    return experiment


def _check(experiment: Experiment) -> None:
    """What no field can check by itself: that names mean something."""
    variants, here = experiment.variants, experiment.name
    if unknown := set(experiment.scales) ^ set(SCALES):
        raise ConfigError(f"{here}: scales are {', '.join(SCALES)}, not {', '.join(sorted(unknown))}")
    named = [(getattr(v, key), key) for v in variants.values() for key in ("after", "time_of", "teacher")]
    named += [(name, "members") for v in variants.values() for name in v.members]
    named += [(table.ours, "ours") for table in experiment.tables]
    named.append((experiment.speed_against, "speed_against"))
    named += [(v, "variants") for scale in experiment.scales.values() for v in scale.variants]
    for name, key in named:
        if name is not None and name not in variants:
            raise ConfigError(f"{here}: {key} names no variant: {name}", config.suggest(name, variants))
    for metric in experiment.metrics:
        if metric.startswith("task_"):
            raise ConfigError(f"{here}: {metric} has a column of its own anyway", "leave it out of metrics")
        _check_metric(here, metric)
    for claim in experiment.claims:
        if not claim.conditions:
            raise ConfigError(f"{here}: a claim without conditions: {claim.says}")
        for name in claim.learnt:
            if name.partition(".")[2] not in LEARNED_ABOVE:
                raise ConfigError(f"{here}: learnt: {name!r} shows nothing", f"VARIANT.{'|'.join(LEARNED_ABOVE)}")
        metrics = {name.partition(".")[2] for condition in claim.conditions for name in condition.references}
        if not claim.learnt and not metrics <= _OF_ANY_MODEL:
            hint = 'learnt = ["VARIANT.tasks_above_majority"], or of masked words ["VARIANT.below_unigram_entropy"]'
            raise ConfigError(f"{here}: which model must have learnt something? {claim.says}", hint)
        for reference in (name for condition in claim.all_conditions for name in condition.references):
            variant, dot, metric = reference.partition(".")
            if not dot or variant not in variants:
                raise ConfigError(f"{here}: {reference!r} is not VARIANT.METRIC of this experiment")
            _check_metric(here, metric)


def _check_metric(here: str, metric: str) -> None:
    if metric not in METRICS and not metric.startswith("task_"):
        hint = config.suggest(metric, METRICS) or f"metrics: {', '.join(METRICS)}, task_NAME"
        raise ConfigError(f"{here}: nothing measures {metric!r}", hint)
