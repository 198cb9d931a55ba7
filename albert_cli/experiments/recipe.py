"""Read an experiment from TOML and check it: `load_experiment` returns an `Experiment`.

The check ensures that every variant and every metric that the file refers to exists. The package's files are
`recipes/experiments/*.toml`; they extend `experiments/common`, which defines the scales.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

from albert_cli import config
from albert_cli.errors import ConfigError
from albert_cli.experiments.experiment import SCALES, Experiment, split_reference
from albert_cli.experiments.metrics import INDEPENDENT_OF_LEARNING, LEARNED_ABOVE, METRICS
from albert_cli.formatting import suggest

FOLDER: Final = "experiments/"


def experiment_names() -> list[str]:
    """Return the names of all experiments in the package."""
    recipes = [name for name in config.shipped_recipes() if name != config.EXPERIMENT_DEFAULTS]
    return [name.removeprefix(FOLDER) for name in recipes if name.startswith(FOLDER)]


def list_experiments() -> tuple[dict[str, str], str]:
    """Return the descriptions of all experiments: by name for `--json`, and as lines of text."""
    descriptions = {name: config.read_description(config.find_recipe(FOLDER + name)) for name in experiment_names()}
    width = max(map(len, descriptions))
    return descriptions, "\n".join(f"{name:<{width}}  {text}" for name, text in descriptions.items())


def load_experiment(name: str) -> Experiment:
    """Read and check an experiment by name or path; raise `ConfigError` if the name or the file is invalid."""
    recipe = name
    if not config.is_recipe_file(name):
        short_name = name.removeprefix(FOLDER)
        names = experiment_names()
        if short_name not in names:
            hint = _suggest_by_source(short_name) or suggest(short_name, names)
            raise ConfigError(f"unknown experiment {short_name!r}", hint or f"experiments: {', '.join(names)}")
        recipe = FOLDER + short_name
    return parse_experiment(config.read_recipe(recipe), name)


def _suggest_by_source(text: str) -> str | None:
    """Return a hint that names the experiments of a table or figure, such as "table4" or "Figure 2"; None otherwise."""
    reference = re.fullmatch(r"(table|figure)[ _-]*(\d+)", text, re.IGNORECASE)
    if reference is None:
        return None
    label = f"{reference[1].capitalize()} {reference[2]}"
    sources = {name: config.read_recipe(FOLDER + name)["source"] for name in experiment_names()}
    matches = [f"{name} ({source})" for name, source in sources.items() if re.search(rf"{label}(?!\d)", source)]
    return f"experiments of {label}: {', '.join(matches)}" if matches else None


def parse_experiment(values: Mapping[str, Any], argument: str) -> Experiment:
    """Check an experiment's values as parsed from TOML; raise `ConfigError` with `argument` and the invalid key."""
    values = {**values, "scales": _borrow_scales(values.get("scales", {}))}
    experiment = config.validate_recipe(Experiment, values, argument)
    experiment = dataclasses.replace(experiment, name=PurePath(argument).stem, argument=argument)
    if wrong_scales := set(experiment.scales).symmetric_difference(SCALES):
        wrong = ", ".join(sorted(wrong_scales))
        hint = f'extends = "{config.EXPERIMENT_DEFAULTS}" has all scales'
        raise ConfigError(f"{argument}: scales must be {', '.join(SCALES)}; unknown or missing: {wrong}", hint)
    _check_variant_names(experiment)
    _check_cycles(experiment)
    _check_metrics(experiment)
    _check_claims(experiment)
    return experiment


def _borrow_scales(scales: Any) -> Any:
    """Return the scales with the variants, changes and extra text of a borrowed scale as defaults."""
    if not isinstance(scales, Mapping) or not all(isinstance(scale, Mapping) for scale in scales.values()):
        return scales  # validation reports the wrong type
    merged = {}
    for name, scale in scales.items():
        borrowed = scales.get(str(scale.get("borrow")), {})  # `str`, because the type is validated later
        defaults = {key: borrowed[key] for key in ("variants", "changes", "extra_text") if key in borrowed}
        merged[name] = config.merge_values(defaults, scale)
    return merged


def _check_variant_names(experiment: Experiment) -> None:
    """Raise `ConfigError` if the value of a key that names a variant is not the name of one."""
    names: list[tuple[str, str | None]] = []  # each key that names a variant, with its value
    for variant in experiment.variants.values():
        names += [("after", variant.after), ("match_time_of", variant.match_time_of), ("teacher", variant.teacher)]
        names += [("members", name) for name in variant.members]
    names += [("compare_with", table.compare_with) for table in experiment.tables]
    names.append(("speed_against", experiment.speed_against))
    names += [("variants", name) for scale in experiment.scales.values() for name in scale.variants]
    for key, name in names:
        if name is not None and name not in experiment.variants:
            hint = suggest(name, experiment.variants) or f"variants: {', '.join(experiment.variants)}"
            raise ConfigError(f"{experiment.argument}: {key} is not the name of a variant: {name}", hint)


def _check_cycles(experiment: Experiment) -> None:
    """Raise `ConfigError` if a variant needs its own run, directly or through other variants."""

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            hint = "change its `after`, `teacher`, `members` or `match_time_of`"
            raise ConfigError(f"{experiment.argument}: variant {name} depends on itself", hint)
        variant = experiment.variants[name]
        for dependency in (*variant.dependencies, variant.match_time_of):
            if dependency is not None:
                visit(dependency, (*path, name))

    for name in experiment.variants:
        visit(name, ())


def _check_metrics(experiment: Experiment) -> None:
    """Raise `ConfigError` if `metrics` lists an unknown metric, or `task_NAME`: tasks always have a column."""
    for metric in experiment.metrics:
        if metric.startswith("task_"):
            raise ConfigError(f"{experiment.argument}: {metric} always has a column", "remove it from metrics")
        _check_metric(experiment, metric)


def _check_claims(experiment: Experiment) -> None:
    """Raise `ConfigError` if a claim has no conditions, or refers to an unknown variant or metric.

    Raise it also if a claim needs `learned` and lacks it, or if `learned` has a metric that does not show learning.
    """
    origin = experiment.argument
    for claim in experiment.claims:
        if not claim.conditions:
            hint = "add [[claims.conditions]] to it"
            raise ConfigError(f"{origin}: claim without conditions: {claim.statement}", hint)
        for reference in claim.learned:
            if split_reference(reference)[1] not in LEARNED_ABOVE:
                choices = f"VARIANT.{'|'.join(LEARNED_ABOVE)}"
                raise ConfigError(f"{origin}: learned: {reference!r} does not show learning", f"use {choices}")
        for condition in claim.all_conditions:
            for reference in condition.references:
                variant, metric = split_reference(reference)
                if not metric or variant not in experiment.variants:
                    hint = f"variants: {', '.join(experiment.variants)}"
                    raise ConfigError(f"{origin}: {reference!r} is not VARIANT.METRIC of this experiment", hint)
                _check_metric(experiment, metric)
        if not claim.learned and not claim.metrics <= INDEPENDENT_OF_LEARNING:
            hint = 'add learned = ["VARIANT.tasks_above_majority"] or, for MLM, ["VARIANT.below_unigram_entropy"]'
            raise ConfigError(f"{origin}: claim needs `learned`, the models that must learn: {claim.statement}", hint)


def _check_metric(experiment: Experiment, metric: str) -> None:
    """Raise `ConfigError` if there is no such metric."""
    if metric not in METRICS and not metric.startswith("task_"):
        hint = suggest(metric, METRICS) or f"metrics: {', '.join(METRICS)}, task_NAME"
        raise ConfigError(f"{experiment.argument}: unknown metric {metric!r}", hint)
