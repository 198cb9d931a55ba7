"""Every experiment that is shipped: read, checked, planned at all four scales."""

from __future__ import annotations

import dataclasses
import functools
import json
import random
import re
from pathlib import Path

import pytest

from albert_cli import config
from albert_cli.counting import costs
from albert_cli.errors import ConfigError
from albert_cli.experiments import recipe
from albert_cli.experiments.budget import Decidability, describe_plan, judge_decidability
from albert_cli.experiments.claims import HOLDS, check_claim
from albert_cli.experiments.plan import ExperimentPlan, ExperimentRequest
from albert_cli.experiments.stages import make_plan
from albert_cli.experiments.uncertainty import exact_value
from albert_cli.training.task_recipe import FinetuneRecipe
from tests.command import albert

PLANNED = [(name, scale) for name in recipe.experiment_names() for scale in recipe.SCALES]


def test_list_names_every_experiment_with_a_sentence() -> None:
    said: dict[str, str] = json.loads(albert("reproduce", "--list", "--json").out)
    assert list(said) == recipe.experiment_names()
    assert {"sizes", "sentence-loss", "sharing", "similarity"} <= said.keys()
    lines = albert("reproduce", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(said)
    assert all(len(about) > 20 and about.endswith(".") for about in said.values())


@pytest.mark.parametrize("name", recipe.experiment_names())
def test_validate_takes_an_experiment_too(name: str) -> None:
    assert "claims" in albert("recipes", "validate", f"experiments/{name}").out


@functools.cache
def planned(name: str, scale: recipe.ScaleName) -> ExperimentPlan:
    return make_plan(recipe.load_experiment(name), ExperimentRequest(scale, Path("out"), dry_run=True))


@pytest.mark.parametrize(("name", "scale"), PLANNED)
def test_plans_at_every_scale(name: str, scale: recipe.ScaleName) -> None:
    plan = planned(name, scale)
    description = describe_plan(plan)
    assert plan.variants and f"scale {scale}" in description.to_text()
    assert {run.variant for run in plan.runs} == set(plan.variants)
    seen: set[str] = set()
    for stage in plan.stages.values():
        assert {need.id for need in stage.needs} <= seen, "a stage comes after what it needs"
        seen.add(stage.id)
    assert len(description.commands) == len(plan.stages)
    if not plan.experiment.is_counted:
        assert description.totals.hours > 0
    for claim in plan.experiment.claims:
        if not claim.scales or scale in claim.scales:
            compared = {reference.partition(".")[0] for c in claim.conditions for reference in c.references}
            assert compared <= set(plan.variants), claim.statement


@pytest.mark.parametrize(("name", "scale"), PLANNED)
def test_its_tasks_can_be_learnt_with_its_settings(name: str, scale: recipe.ScaleName) -> None:
    plan = planned(name, scale)
    for task in plan.scale.tasks:
        values = config.merge_values(config.read_recipe(f"finetune/{task}"), plan.scale.task_changes)
        config.validate_recipe(FinetuneRecipe, values, task)


@pytest.mark.parametrize("name", recipe.experiment_names())
def test_what_is_said_to_be_no_better_has_learnt_something(name: str) -> None:
    """Else a variant that failed to train would make the claim hold."""
    experiment = recipe.load_experiment(name)
    for claim in experiment.claims:
        guarded = {guard.partition(".")[0] for guard in claim.learned}
        for condition in claim.conditions:
            variant, _, metric = condition.value.partition(".")
            if condition.must == "below" and condition.minus and metric in ("tasks_mean", "mlm_accuracy"):
                assert variant in guarded, claim.statement


@pytest.mark.parametrize("name", recipe.experiment_names())
def test_paper_tables_have_a_cell_a_column_and_name_variants(name: str) -> None:
    experiment = recipe.load_experiment(name)
    for table in experiment.tables:
        assert all(len(cells) == len(table.columns) for cells in table.rows.values()), table.title
    assert experiment.claims and all(claim.margin and claim.source for claim in experiment.claims)


@pytest.mark.parametrize("name", recipe.experiment_names())
def test_two_cores_run_a_mini_experiment_in_twenty_minutes_and_an_h200_its_own_in_thirty(name: str) -> None:
    longer = {"sharing": 40, "long-inputs": 70, "init-long": 180}  # as their files say
    limits: dict[recipe.ScaleName, tuple[int, int]] = {"mini": (2, longer.get(name, 20)), "h200": (1, 30)}
    for scale, (devices, minutes) in limits.items():
        totals = describe_plan(planned(name, scale)).totals
        assert totals.hours / devices * 60 <= minutes, scale


def test_a_plan_counts_the_vocabulary_that_the_data_will_have() -> None:
    plan = make_plan(recipe.load_experiment("similarity"), ExperimentRequest("mini", Path("out"), dry_run=True))
    run = plan.runs[0]
    assert run.recipe is not None and run.recipe.model.vocab_size == plan.scale.vocabulary == 4000
    assert run.pretrain is not None
    cost = run.pretrain.cost
    assert cost is not None and cost.parameters == costs.count_parameters(run.recipe.model).total < 250_000


def test_a_plan_counts_what_others_start_from() -> None:
    description = describe_plan(planned("dropout", "paper"))
    steps = {run.variant: run.cost.steps for run in description.runs if run.cost}
    assert steps == {"before": 900_000, "with": 100_000, "without": 100_000}
    assert "before, with dropout" in description.to_text()
    rows = [*description.runs, *description.fine_tunings]
    assert description.totals.flops == sum(row.cost.flops for row in rows if row.cost)


def test_seeds_are_not_made_one_by_a_change() -> None:
    """Their spread would be nothing, and every claim decided."""
    with pytest.raises(ConfigError, match="its own seed"):
        make_plan(
            recipe.load_experiment("sentence-loss"),
            ExperimentRequest("mini", Path("out"), changes=("train.seed=3",), dry_run=True),
        )


def test_changes_leave_equal_time_equal() -> None:
    def steps(*changes: str) -> dict[str, int]:
        plan = make_plan(
            recipe.load_experiment("equal-time"), ExperimentRequest("mini", Path("out"), changes=changes, dry_run=True)
        )
        assert plan.matched_times["bert-large"].seconds is None
        return {run.variant: run.recipe.schedule.total_steps for run in plan.runs if run.recipe}

    usual, more = steps(), steps("schedule.total_steps=5000")
    assert more["xxlarge"] == 5000
    assert more["bert-large"] / 5000 == pytest.approx(usual["bert-large"] / usual["xxlarge"], rel=0.01)
    assert steps("train.batch_size=1") == usual, "of both"


def test_a_plan_says_which_claims_its_seeds_can_decide_and_what_deciding_costs(tmp_path: Path) -> None:
    def decided(seeds: int, tasks: Path | None = None, dry: bool = True) -> dict[str, Decidability]:
        request = ExperimentRequest("paper", Path("out"), tasks=tasks, seeds=seeds, dry_run=dry)
        plan = make_plan(recipe.load_experiment("depth"), request)
        return {claim.statement: judge_decidability(plan, claim) for claim in plan.claims}

    parameters, deeper, first, _ = one = list(decided(1).values())
    assert (parameters.reason, parameters.device_hours) == ("", 0.0), "counts need no second seed"
    assert all("one seed" in found.reason for found in one[1:])
    assert deeper.device_hours > first.device_hours > 0
    two = list(decided(2).values())
    assert not any(found.reason for found in two)
    assert [f.device_hours for f in two] == pytest.approx([f.device_hours for f in one]), "of two seeds in any case"
    untested = list(decided(2, dry=False).values())
    assert [bool(found.reason) for found in untested] == [False, False, True, True] and "--tasks" in untested[2].reason
    # What a claim compares, with what that starts from: of 6 and 3 layers also the run with 1.
    description = describe_plan(planned("depth", "paper"))
    hours = {run.variant: run.hours for run in description.runs}
    assert deeper.device_hours == pytest.approx(2 * sum(hours[name] for name in ("l1", "l3", "l6", "l12")))
    text = description.to_text()
    assert "cannot be decided: one seed" in text and "decided by counting" in text
    assert [not decidability.reason for _, decidability in description.claims] == [True, False, False, False]
    overall = describe_plan(planned("overall", "paper"))
    hours = {run.variant: run.hours for run in overall.runs}
    (faster,) = (decidability for claim, decidability in overall.claims if "trains faster" in claim.statement)
    compared = ("large", "xxlarge", "bert-large")  # whose speed the others are measured by
    assert faster.device_hours == pytest.approx(2 * sum(hours[name] for name in compared))


def test_a_claim_about_one_metric_of_a_task_needs_its_files() -> None:
    plan = make_plan(recipe.load_experiment("overall"), ExperimentRequest("paper", Path("out"), seeds=2, dry_run=True))
    claim = recipe.PaperClaim("", "", "", (recipe.Condition("large.task_squad1_f1", "above", 0.5),))
    assert not judge_decidability(plan, claim).reason
    plan = dataclasses.replace(plan, skipped={"squad1": "no such file"})
    assert "--tasks" in judge_decidability(plan, claim).reason


# Between these lie the values of models that have learnt nothing, each variant with its own: they know at most how
# frequent pieces and classes are.
NOTHING = {
    "mlm_accuracy": (0.0, 0.15), "own_mlm_accuracy": (0.0, 0.15), "mlm_loss": (5.0, 8.0), "sop_accuracy": (0.49, 0.51),
    "below_unigram_entropy": (-1.0, 0.5), "nsp_accuracy": (0.49, 0.51), "tasks_mean": (0.4, 0.6),
    "tasks_above_majority": (-0.1, 0.02), "task_race": (0.2, 0.4), "l2_mean": (1.0, 9.0), "l2_last": (1.0, 9.0),
    "l2_variation": (0.0, 2.0), "degrees_mean": (5.0, 60.0), "degrees_last": (5.0, 60.0),
    "degrees_variation": (0.0, 9.0),
}  # fmt: skip
# What is asked of any model: counts, and how long it trains.
OF_ANY = {"parameters", "block_parameters", "paper_count", "layers", "steps", "seconds", "speedup"}


@pytest.mark.parametrize("name", recipe.experiment_names())
def test_no_claim_about_what_is_learnt_holds_where_nothing_is(name: str) -> None:
    """Whichever variant is by chance above which: the values differ, and both seeds of each agree."""
    experiment, rng = recipe.load_experiment(name), random.Random(0)
    for _ in range(200):
        values = {
            v: {metric: dict.fromkeys((0, 1), exact_value(rng.uniform(*limits))) for metric, limits in NOTHING.items()}
            for v in experiment.variants
        }
        for claim in experiment.claims:
            if not {r.partition(".")[2] for c in claim.conditions for r in c.references} <= OF_ANY:
                assert check_claim(claim, values).verdict != HOLDS, claim.statement


def test_a_name_that_is_nearly_right_gets_a_suggestion() -> None:
    assert "did you mean 'sharing'?" in albert("reproduce", "shraing", "--dry-run", expect=2).err


GUARD = ["a.sop_accuracy"]


def claiming(*conditions: dict[str, object], **more: object) -> dict[str, object]:
    return {"claims": [{"statement": "x", "source": "y", "margin": "z", "conditions": list(conditions), **more}]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (claiming(), "without conditions"),
        (claiming({"value": "nobody.seconds", "must": "above", "bound": 1}), "nobody.seconds"),
        (claiming({"value": "a.mlm_loss", "must": "above", "bound": 1}), "claim needs `learned`"),
        (
            claiming({"value": "a.mlm_loss", "must": "above", "bound": 1}, learned=["a.mlm_loss"]),
            "does not show learning",
        ),
        ({"scales": {"mini": {"about": "", "base": "mini/docs"}}}, "scales must be"),
        ({"variants": {"a": {"title": "A", "after": "b"}}}, "not the name of a variant"),
        ({"variants": {"a": {"titel": "A"}}}, "titel"),
        ({"clames": []}, "did you mean 'claims'?"),
        ({"scales": 3}, "scales"),
        ({"variants": 3}, "variants"),
        ({"metrics": ["mlm_acuracy"]}, "did you mean 'mlm_accuracy'?"),
        ({"metrics": ["task_table"]}, "always has a column"),
        ({"plots": ["layer"]}, "plots"),
        (
            claiming({"value": "a.mlm_acuracy", "must": "above", "bound": 1}, learned=GUARD),
            "did you mean 'mlm_accuracy'?",
        ),
        (claiming({"value": "a.mlm_loss", "must": "above", "bond": 1}), "did you mean 'bound'?"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    scale = {"about": "", "base": "mini/docs"}
    values = {"title": "T", "source": "S", "scales": dict.fromkeys(recipe.SCALES, scale)}
    with pytest.raises(ConfigError) as error:
        recipe.parse_experiment({**values, "variants": {"a": {"title": "A"}}, **change}, "mine")
    assert said in f"{error.value} {error.value.hint}"


@pytest.mark.parametrize("missing", ["title", "source", "scales", "variants"])
def test_a_recipe_lacks_nothing(missing: str) -> None:
    values: dict[str, object] = {"title": "T", "source": "S", "scales": {}, "variants": {}}
    del values[missing]
    with pytest.raises(ConfigError, match=missing):
        recipe.parse_experiment(values, "mine")


@pytest.mark.parametrize(
    ("lines", "said"),
    [("variants.all.mini.model.hiden_size = 8", "hiden_size"), ("scales.mini = 3", "scales.mini")],
)
def test_validate_reads_the_recipe_of_every_variant(lines: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "experiments/sharing"\n{lines}\n')
    assert said in albert("recipes", "validate", path, expect=2).err


def test_no_variant_starts_from_itself(tmp_path: Path) -> None:
    path = tmp_path / "circle.toml"
    path.write_text('extends = "experiments/depth"\nvariants.l1.after = "l3"\n')
    with pytest.raises(ConfigError, match="starts from itself"):
        recipe.load_experiment(str(path))


def test_a_task_that_does_not_exist_is_no_task_without_files(tmp_path: Path) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text('extends = "experiments/sharing"\nscales.mini.tasks = ["rtr"]\n')
    with pytest.raises(ConfigError, match="no task is called 'rtr'"):
        make_plan(recipe.load_experiment(str(path)), ExperimentRequest("mini", Path("out")))


def test_the_page_of_claims_names_every_experiment_and_every_table_of_the_paper() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lab" / "claims.md").read_text(encoding="utf-8")
    missing = [
        name for name in recipe.experiment_names() if f"`{name}`" not in page and f"reproduce {name}" not in page
    ]
    assert sorted(missing) == ["init", "init-long", "long-inputs"], "of no row of the paper"
    assert all(f"Table {number}" in page or f"Tables {number}" in page for number in range(1, 15))
    assert {f"§{n}" for n in ("4.1", "4.2.1", "4.5")} <= set(re.findall(r"§[\d.]*\d", page))
