"""Experiments as recipes: variants of a base recipe, the scales to run them at, the paper's tables and claims.

`recipes/experiments/*.toml` contain them; `experiments/common` has what all of them share. A variant is a set of
changes to the scale's base recipe, so two variants differ only in what their file lists.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from albert_cli import config
from albert_cli.config import RecipeValues
from albert_cli.errors import ConfigError
from albert_cli.experiments.metrics import COLUMN_METRICS, EXACT, INDEPENDENT_OF_LEARNING, LEARNED_ABOVE, METRICS

ScaleName = Literal["smoke", "mini", "h200", "paper"]
SCALES: Final[tuple[ScaleName, ...]] = get_args(ScaleName)
FOLDER: Final = "experiments/"

_SIGNS: Final = {"above": ">", "below": "<", "equal": "="}


@dataclass(frozen=True)
class ExperimentScale:
    """The size of an experiment: base recipe, text, tasks and seeds."""

    about: str
    base: str
    """The pretraining recipe that variants change."""
    changes: RecipeValues = field(default_factory=dict)
    """Changes to the base recipe, applied before the variant's own."""
    borrow: ScaleName | None = None
    """Another scale whose variants, changes and `step_fraction` of steps are used."""
    step_fraction: float = 1.0
    text: tuple[str, ...] = ("docs:",)
    extra_text: tuple[str, ...] = ()
    """Additional text that some variants train on."""
    alternative_text: tuple[str, ...] = ()
    """Sources that can replace the text, for messages."""
    probe_text: tuple[str, ...] = ()
    """Text of the intrinsic scores instead of the held-out text; TASKS stands for the folder of the tasks."""
    vocabulary: int = 30_000
    sample: int = 2_000_000
    """Sentences that the vocabulary is trained on."""
    holdout: float = 0.01
    seeds: int = 1
    variants: tuple[str, ...] = ()
    """The variants to run; empty for all."""
    tasks: tuple[str, ...] = ()
    task_runs: int = 1
    task_changes: RecipeValues = field(default_factory=dict)
    """Changes to the tasks' own recipes."""
    probe_sequences: int = 4096
    peak: float = 790e12
    """FLOP/s of a device, for the hours of a plan."""
    utilization: float = 0.5
    """The fraction of `peak` that training is assumed to reach."""


@dataclass(frozen=True)
class Variant:
    """A row of an experiment's table, as changes to the scale's base recipe."""

    title: str
    changes: RecipeValues = field(default_factory=dict)
    """Changes at every scale. Those below are for one scale, where `extends` names another base recipe."""
    smoke: RecipeValues = field(default_factory=dict)
    mini: RecipeValues = field(default_factory=dict)
    h200: RecipeValues = field(default_factory=dict)
    paper: RecipeValues = field(default_factory=dict)
    after: str | None = None
    """The variant whose run with the same seed gives the initial weights."""
    continues: bool = False
    """Also continue from that run's optimizer state and step."""
    stacked: bool = False
    """Repeat that run's layers."""
    teacher: str | None = None
    """The variant to distil from."""
    members: tuple[str, ...] = ()
    """The variants whose fine-tuned models form an ensemble (`albert ensemble`)."""
    match_time_of: str | None = None
    """The variant whose wall-clock time determines the number of steps."""
    text: Literal["usual", "extra"] = "usual"
    shape: str | None = None
    """A shape for `albert params`, if nothing is trained."""
    is_prefix: bool = False
    """True if other variants start from this run and it is no row of the table."""
    has_tasks: bool = True

    @property
    def dependencies(self) -> tuple[str, ...]:
        """Variants to train before this one."""
        return tuple(name for name in (self.after, self.teacher, *self.members) if name)


@dataclass(frozen=True)
class PaperTable:
    """A table as printed in the paper. Rows are named by a variant, or by the paper's own name of another model."""

    title: str
    version: Literal["both versions", "final version", "version 1"]
    columns: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    note: str = ""
    compare_with: str | None = None
    """The variant that rows of other models are compared with."""
    metrics: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The metrics of columns that differ from `COLUMN_METRICS`, such as F1 of MRPC."""

    def column_metrics(self, column: str) -> tuple[str, ...]:
        """Return the metrics behind a column; empty if it is not measured."""
        return self.metrics.get(column, COLUMN_METRICS.get(column, ()))

    @property
    def tasks(self) -> frozenset[str]:
        """Names of the tasks with a column."""
        metrics = (metric for column in self.columns for metric in self.column_metrics(column))
        return frozenset(metric.split("_")[1] for metric in metrics if metric.startswith("task_"))


@dataclass(frozen=True)
class Condition:
    """An inequality between measured values, which are written `VARIANT.METRIC`.

    `value`, less all of `minus`, plus all of `plus` and divided by `over`, must be above, below or equal to `bound`: a
    number or another value.
    """

    value: str
    must: Literal["above", "below", "equal"]
    bound: float | str
    minus: tuple[str, ...] = ()
    plus: tuple[str, ...] = ()
    over: str | None = None

    @property
    def references(self) -> tuple[str, ...]:
        """Names of the measured values in the condition."""
        bound = self.bound if isinstance(self.bound, str) else None
        return tuple(name for name in (self.value, *self.minus, *self.plus, self.over, bound) if name)

    @property
    def metrics(self) -> frozenset[str]:
        """The metrics of these values."""
        return frozenset(name.partition(".")[2] for name in self.references)

    @property
    def is_exact(self) -> bool:
        """True if it compares counts alone."""
        return self.metrics <= EXACT

    def __str__(self) -> str:
        left = "".join([self.value, *(f" − {name}" for name in self.minus), *(f" + {name}" for name in self.plus)])
        if self.over:
            left = f"{left} / {self.over}"
        bound = self.bound if isinstance(self.bound, str) else f"{self.bound:,.12g}"
        return f"{left} {_SIGNS[self.must]} {bound}"


@dataclass(frozen=True)
class PaperClaim:
    """A statement of the paper as conditions that must all hold."""

    statement: str
    source: str
    margin: str
    """How the bounds were chosen."""
    conditions: tuple[Condition, ...]
    learned: tuple[str, ...] = ()
    """Values of `LEARNED_ABOVE` which show that the compared models have learned something."""
    scales: tuple[ScaleName, ...] = ()
    """The scales that run what is compared; empty for all."""

    @property
    def all_conditions(self) -> tuple[Condition, ...]:
        """The conditions on learning and the conditions of the statement."""
        guards = (Condition(name, "above", LEARNED_ABOVE[name.partition(".")[2]]) for name in self.learned)
        return (*guards, *self.conditions)

    @property
    def metrics(self) -> frozenset[str]:
        """The metrics of all conditions."""
        return frozenset(metric for condition in self.all_conditions for metric in condition.metrics)

    @property
    def variants(self) -> frozenset[str]:
        """All variants in the conditions."""
        references = (name for condition in self.all_conditions for name in condition.references)
        return frozenset(name.partition(".")[0] for name in references)

    @property
    def compares_tasks(self) -> bool:
        """True if the statement is about scores of fine-tuned models."""
        return any(metric.startswith("task") for condition in self.conditions for metric in condition.metrics)


@dataclass(frozen=True)
class Experiment:
    """A whole experiment."""

    title: str
    source: str
    scales: dict[str, ExperimentScale]
    variants: dict[str, Variant]
    tables: tuple[PaperTable, ...] = ()
    claims: tuple[PaperClaim, ...] = ()
    plots: tuple[Literal["layers"], ...] = ()
    """Figures that not every report has: Figure 1 of the paper."""
    metrics: tuple[str, ...] = ()
    speed_against: str | None = None
    """The variant that the others' speedup is relative to."""
    name: str = ""
    argument: str = ""
    """The name or the path that the user gave."""

    @property
    def is_counted(self) -> bool:
        """True if nothing is trained: every variant is a shape whose parameters are counted."""
        return all(variant.shape is not None for variant in self.variants.values())


def experiment_names() -> list[str]:
    """Return the names of all experiments that come with the package."""
    names = (recipe.removeprefix(FOLDER) for recipe in config.shipped_recipes() if recipe.startswith(FOLDER))
    return [name for name in names if name != "common"]


def list_experiments() -> tuple[dict[str, str], str]:
    """Return every experiment with its description, as data and as text."""
    descriptions = {name: config.read_description(config.find_recipe(FOLDER + name)) for name in experiment_names()}
    width = max(map(len, descriptions))
    return descriptions, "\n".join(f"{name:<{width}}  {text}" for name, text in descriptions.items())


def load_experiment(name: str) -> Experiment:
    """Read and check an experiment by name or path; raise `ConfigError` if something is wrong."""
    recipe = name
    if not name.endswith(".toml"):
        short_name = name.removeprefix(FOLDER)
        names = experiment_names()
        if short_name not in names:
            hint = config.suggest(short_name, names) or f"experiments: {', '.join(names)}"
            raise ConfigError(f"unknown experiment {short_name!r}", hint)
        recipe = FOLDER + short_name
    experiment = parse_experiment(config.read_recipe(recipe), config.find_recipe(recipe).stem)
    return dataclasses.replace(experiment, argument=name)


def parse_experiment(values: Mapping[str, Any], name: str) -> Experiment:
    """Validate an experiment's values as parsed from TOML."""
    values = {**values, "scales": _borrow_scales(values.get("scales", {}))}
    experiment = dataclasses.replace(config.validate_recipe(Experiment, values, name), name=name)
    if unknown := set(experiment.scales) ^ set(SCALES):
        raise ConfigError(f"{name}: scales must be {', '.join(SCALES)}; check {', '.join(sorted(unknown))}")
    _check_variant_names(experiment)
    _check_cycles(experiment)
    _check_metrics(experiment)
    _check_claims(experiment)
    return experiment


def _borrow_scales(scales: Any) -> Any:
    """Put the variants, changes and extra text of a borrowed scale below the scale's own."""
    if not isinstance(scales, Mapping) or not all(isinstance(scale, Mapping) for scale in scales.values()):
        return scales  # validation reports the wrong type
    borrowed = {}
    for key, scale in scales.items():
        other = scales.get(str(scale.get("borrow")), {})
        defaults = {name: other[name] for name in ("variants", "changes", "extra_text") if name in other}
        borrowed[key] = config.merge_values(defaults, scale)
    return borrowed


def _check_variant_names(experiment: Experiment) -> None:
    for key, name in _variant_references(experiment):
        if name not in experiment.variants:
            hint = config.suggest(name, experiment.variants)
            raise ConfigError(f"{experiment.name}: {key} is not the name of a variant: {name}", hint)


def _variant_references(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Yield (key, variant name) for every key that names a variant."""
    for variant in experiment.variants.values():
        for key in ("after", "match_time_of", "teacher"):
            if (name := getattr(variant, key)) is not None:
                yield key, name
        yield from (("members", name) for name in variant.members)
    for table in experiment.tables:
        if table.compare_with is not None:
            yield "compare_with", table.compare_with
    if experiment.speed_against is not None:
        yield "speed_against", experiment.speed_against
    for scale in experiment.scales.values():
        yield from (("variants", name) for name in scale.variants)


def _check_cycles(experiment: Experiment) -> None:
    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            raise ConfigError(
                f"{experiment.name}: variant {name} starts from itself", "change its `after` or `teacher`"
            )
        variant = experiment.variants[name]
        for dependency in (*variant.dependencies, variant.match_time_of):
            if dependency is not None:
                visit(dependency, (*path, name))

    for name in experiment.variants:
        visit(name, ())


def _check_metrics(experiment: Experiment) -> None:
    for metric in experiment.metrics:
        if metric.startswith("task_"):
            raise ConfigError(f"{experiment.name}: {metric} always has a column", "remove it from metrics")
        _check_metric(experiment, metric)


def _check_claims(experiment: Experiment) -> None:
    here = experiment.name
    for claim in experiment.claims:
        if not claim.conditions:
            raise ConfigError(f"{here}: claim without conditions: {claim.statement}")
        for name in claim.learned:
            if name.partition(".")[2] not in LEARNED_ABOVE:
                choices = f"VARIANT.{'|'.join(LEARNED_ABOVE)}"
                raise ConfigError(f"{here}: learned: {name!r} does not show learning", f"use {choices}")
        if not claim.learned and not claim.metrics <= INDEPENDENT_OF_LEARNING:
            hint = 'add learned = ["VARIANT.tasks_above_majority"] or, for MLM, ["VARIANT.below_unigram_entropy"]'
            raise ConfigError(
                f"{here}: claim needs `learned`, the models that must have learned: {claim.statement}", hint
            )
        for reference in (name for condition in claim.all_conditions for name in condition.references):
            variant, dot, metric = reference.partition(".")
            if not dot or variant not in experiment.variants:
                raise ConfigError(f"{here}: {reference!r} is not VARIANT.METRIC of this experiment")
            _check_metric(experiment, metric)


def _check_metric(experiment: Experiment, metric: str) -> None:
    if metric not in METRICS and not metric.startswith("task_"):
        hint = config.suggest(metric, METRICS) or f"metrics: {', '.join(METRICS)}, task_NAME"
        raise ConfigError(f"{experiment.name}: unknown metric {metric!r}", hint)
