"""Tests of the figures of an experiment's report."""

from __future__ import annotations

from pathlib import Path

import pytest

from albert_cli.experiments import recipe
from albert_cli.experiments.outcome import Outcome
from albert_cli.experiments.page_figures import make_figures
from albert_cli.experiments.plan import ExperimentPlan, ExperimentRequest
from albert_cli.experiments.stages import make_plan


def plan(name: str, directory: Path) -> ExperimentPlan:
    return make_plan(recipe.load_experiment(name), ExperimentRequest("smoke", directory, dry_run=True))


def titles(outcome: Outcome) -> list[str]:
    return [figure.title for figure in make_figures(outcome)]


def test_no_values_give_no_figure(tmp_path: Path) -> None:
    assert make_figures(Outcome(plan("similarity", tmp_path), {})) == []


@pytest.mark.parametrize(("name", "count"), [("similarity", 2), ("depth", 0)])
def test_layers_have_figures_only_where_the_recipe_plots_them(name: str, count: int, tmp_path: Path) -> None:
    experiment_plan = plan(name, tmp_path)
    distances = {variant: {"l2": [[1.0, 2.0]], "degrees": [[30.0, 20.0]]} for variant in experiment_plan.variants}
    assert len(make_figures(Outcome(experiment_plan, {}, layer_distances=distances))) == count


def test_curve_of_one_point_is_no_figure(tmp_path: Path) -> None:
    experiment_plan = plan("depth", tmp_path)
    curves = {"mlm_loss": [[(10.0, 3.0)]], "mlm_accuracy": [[(10.0, 0.1), (20.0, 0.2)]]}
    assert titles(Outcome(experiment_plan, {}, curves=dict.fromkeys(experiment_plan.variants, curves))) == [
        "MLM accuracy"
    ]


def test_scores_over_parameters_need_two_sizes(tmp_path: Path) -> None:
    experiment_plan = plan("width", tmp_path)
    sizes = {variant: float(size) for size, variant in enumerate(experiment_plan.variants, start=1)}
    scores = {"mlm_accuracy": {0: 0.2}, "tasks_mean": {0: 0.6}}
    values = {name: {"parameters": {0: size}, **scores} for name, size in sizes.items()}
    assert titles(Outcome(experiment_plan, values)) == [
        "Mean of the tasks, by parameters",
        "MLM accuracy, by parameters",
    ]
    same_size = {name: {"parameters": {0: 7.0}, **scores} for name in sizes}
    assert titles(Outcome(experiment_plan, same_size)) == []
    scored_once = {name: values[name] if size == 1 else {"parameters": {0: size}} for name, size in sizes.items()}
    assert titles(Outcome(experiment_plan, scored_once)) == []


def test_experiment_without_training_shows_only_parameters(tmp_path: Path) -> None:
    experiment_plan = plan("sizes", tmp_path)
    values = {name: {"parameters": {0: 1e6 * size}} for size, name in enumerate(experiment_plan.variants, start=1)}
    assert titles(Outcome(experiment_plan, values)) == ["Parameters"]
