"""Tests of all experiments in the package: their recipes are read, checked, and planned at all four scales."""

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
from albert_cli.experiments.experiment import SCALES, Condition, PaperClaim, ScaleName
from albert_cli.experiments.inputs import MINIMAL_PAIRS_TASK
from albert_cli.experiments.plan import ExperimentPlan, ExperimentRequest
from albert_cli.experiments.stages import make_plan
from albert_cli.experiments.uncertainty import exact_value
from albert_cli.report.figures import PALETTE
from albert_cli.training.task_recipe import FinetuneRecipe
from tests.helpers.command import albert


def test_list_prints_every_experiment_with_a_description() -> None:
    message: dict[str, str] = json.loads(albert("reproduce", "--list", "--json").out)
    assert list(message) == recipe.experiment_names()
    assert {"sizes", "sentence-loss", "sharing", "similarity"} <= message.keys()
    lines = albert("reproduce", "--list").out.splitlines()
    assert [line.split()[0] for line in lines] == list(message)
    assert all(len(about) > 20 and about.endswith(".") for about in message.values())


@pytest.mark.parametrize("name", ["equal-time", "sizes"])
def test_validate_accepts_an_experiment(name: str) -> None:
    """An experiment that trains models, and one that counts parameters; `planned` checks all others in the same way."""
    assert "claims" in albert("recipes", "validate", f"experiments/{name}").out


@functools.cache
def planned(name: str, scale: ScaleName) -> ExperimentPlan:
    return make_plan(recipe.load_experiment(name), ExperimentRequest(scale, Path("out"), dry_run=True))


@pytest.mark.parametrize("scale", SCALES)
def test_plan_at_every_scale_is_complete(scale: ScaleName) -> None:
    for name in recipe.experiment_names():
        plan = planned(name, scale)
        description = describe_plan(plan)
        assert plan.variants and f"scale {scale}" in description.to_text(), name
        assert {run.variant for run in plan.runs} == set(plan.variants), name
        seen: set[str] = set()
        for stage in plan.stages.values():
            assert {need.id for need in stage.needs} <= seen, f"{name}: a stage comes after what it needs"
            seen.add(stage.id)
        assert len(description.commands) == len(plan.stages), name
        assert plan.experiment.is_counted or description.totals.device_hours > 0, name
        for claim in plan.experiment.claims:
            if not claim.scales or scale in claim.scales:
                compared = {reference.partition(".")[0] for c in claim.conditions for reference in c.references}
                assert compared <= set(plan.variants), claim.statement


@pytest.mark.parametrize("scale", SCALES)
def test_task_changes_of_every_scale_are_valid(scale: ScaleName) -> None:
    for name in recipe.experiment_names():
        plan = planned(name, scale)
        for task in set(plan.scale.tasks) - {MINIMAL_PAIRS_TASK}:
            values = config.merge_values(config.read_recipe(f"finetune/{task}"), plan.scale.task_changes)
            config.validate_recipe(FinetuneRecipe, values, f"{name}: {task}")


def test_claims_of_no_gain_require_a_learned_model() -> None:
    """Otherwise a variant that failed to train would make the claim hold."""
    for claim in (claim for name in recipe.experiment_names() for claim in recipe.load_experiment(name).claims):
        guarded = {guard.partition(".")[0] for guard in claim.learned}
        for condition in claim.conditions:
            variant, _, metric = condition.value.partition(".")
            if condition.must == "below" and condition.minus and metric in ("tasks_mean", "mlm_accuracy"):
                assert variant in guarded, claim.statement


def test_paper_tables_have_a_cell_for_each_column() -> None:
    for name in recipe.experiment_names():
        experiment = recipe.load_experiment(name)
        for table in experiment.tables:
            assert all(len(cells) == len(table.columns) for cells in table.rows.values()), table.title
        assert experiment.claims and all(claim.margin and claim.source for claim in experiment.claims), name


def test_each_variant_has_its_own_color() -> None:
    for name in recipe.experiment_names():
        assert len(recipe.load_experiment(name).variants) <= len(set(PALETTE)), name


@pytest.mark.parametrize(("scale", "devices", "minutes"), [("mini", 2, 20), ("h200", 1, 40)])
def test_mini_and_h200_plans_are_within_their_minutes(scale: ScaleName, devices: int, minutes: int) -> None:
    longer = {"long-inputs": 72, "embedding": 25, "squad-race": 30, "glue": 25}  # minutes
    for name in recipe.experiment_names():
        limit = longer.get(name, minutes) if scale == "mini" else minutes
        totals = describe_plan(planned(name, scale)).totals
        assert totals.device_hours / devices * 60 <= limit, name


def test_plan_counts_the_vocabulary_of_the_data() -> None:
    plan = make_plan(recipe.load_experiment("similarity"), ExperimentRequest("mini", Path("out"), dry_run=True))
    run = plan.runs[0]
    assert run.recipe is not None and run.recipe.model.vocab_size == plan.scale.vocabulary == 4000
    assert run.pretrain is not None
    cost = run.pretrain.cost
    assert cost is not None and cost.parameters == costs.count_parameters(run.recipe.model).total < 250_000


def test_plan_includes_the_cost_of_unmeasured_runs() -> None:
    description = describe_plan(planned("dropout", "paper"))
    steps = {run.variant: run.cost.steps for run in description.pretrainings if run.cost}
    assert steps == {"before": 900_000, "with": 100_000, "without": 100_000}
    assert "before, with dropout" in description.to_text()
    rows = [*description.pretrainings, *description.fine_tunings]
    assert description.totals.flops == sum(row.cost.flops for row in rows if row.cost)


def select(name: str, *variants: str) -> ExperimentPlan:
    """Return the plan of two seeds of an experiment whose mini scale selects these variants."""
    experiment = recipe.load_experiment(name)
    scale = dataclasses.replace(experiment.scales["mini"], variants=variants)
    experiment = dataclasses.replace(experiment, scales={**experiment.scales, "mini": scale})
    return make_plan(experiment, ExperimentRequest("mini", Path("out"), seeds=2, dry_run=True))


def test_plan_includes_the_cost_of_runs_not_selected() -> None:
    plan = select("depth", "l12")
    assert plan.variants == ["l12"] and {run.variant for run in plan.unmeasured} == {"l1", "l3", "l6"}
    description = describe_plan(plan)
    pretrainings = [stage.cost for stage in plan.stages.values() if stage.kind == "pretrain"]
    assert len(pretrainings) == 8
    assert description.totals.flops == sum(cost.flops for cost in pretrainings if cost)
    claim = PaperClaim("", "", "", (Condition("l12.mlm_accuracy", "above", 0.5),))
    assert judge_decidability(plan, claim).device_hours == pytest.approx(description.totals.device_hours)
    assert {run.variant for run in select("distillation", "distilled").unmeasured} == {"teacher"}


def test_plan_leaves_out_starts_of_variants_not_selected() -> None:
    assert not select("stacking", "whole").unmeasured
    assert {run.variant for run in select("stacking", "stacked").unmeasured} == {"half"}


def test_override_of_the_seed_is_rejected() -> None:
    """With equal seeds the spread would be zero, so every claim would be decided."""
    with pytest.raises(ConfigError, match="its own seed"):
        make_plan(
            recipe.load_experiment("sentence-loss"),
            ExperimentRequest("mini", Path("out"), changes=("train.seed=3",), dry_run=True),
        )


def test_overrides_keep_matched_times_equal() -> None:
    def steps(*changes: str) -> dict[str, int]:
        plan = make_plan(
            recipe.load_experiment("equal-time"), ExperimentRequest("mini", Path("out"), changes=changes, dry_run=True)
        )
        assert plan.matched_times["bert-large"].seconds is None
        return {run.variant: run.recipe.schedule.total_steps for run in plan.runs if run.recipe}

    usual = steps()
    more = steps("schedule.total_steps=5000")
    assert more["xxlarge"] == 5000
    assert more["bert-large"] / 5000 == pytest.approx(usual["bert-large"] / usual["xxlarge"], rel=0.01)
    assert steps("train.batch_size=1") == usual, "the batch size changes for both variants"


def test_given_speeds_determine_matched_steps() -> None:
    """At 300 against 500 TFLOP/s the same time has 0.6 times the FLOPs."""

    def steps(**tflops: float) -> int:
        request = ExperimentRequest("paper", Path("out"), dry_run=True, tflops=tflops)
        plan = make_plan(recipe.load_experiment("equal-time"), request)
        (run,) = (run for run in plan.runs if run.variant == "bert-large")
        assert run.recipe is not None
        assert not plan.matched_times["bert-large"].is_measured
        return run.recipe.schedule.total_steps

    speeds = {"xxlarge": 500.0, "bert-large": 300.0}
    assert steps(**speeds) == pytest.approx(0.6 * steps(), rel=1e-5) == pytest.approx(557_534, abs=1)


def test_squad_race_trains_its_tasks_at_every_scale() -> None:
    for scale in SCALES:
        assert planned("squad-race", scale).scale.tasks == ("squad1", "squad2", "race"), scale


def test_curves_at_paper_scale_reach_the_axis_of_figure_2a() -> None:
    plan = planned("curves", "paper")
    steps = {run.variant: run.recipe.schedule.total_steps for run in plan.runs if run.recipe}
    assert steps["without-data"] == steps["with-data"] == 550_000


def test_every_claim_of_the_sharing_statements_has_conditions() -> None:
    claims = recipe.load_experiment("sharing").claims
    (attention,) = (claim for claim in claims if "attention alone" in claim.statement and claim.compares_tasks)
    assert [str(condition) for condition in attention.conditions] == [
        "none.tasks_mean − attention.tasks_mean < 0.005",
        "wide-none.tasks_mean − wide-attention.tasks_mean < 0.014",
    ]
    (wide,) = (claim for claim in claims if claim.statement.startswith("At E = H"))
    assert str(wide.conditions[0]) == (
        "wide-none.tasks_mean − wide-all.tasks_mean − none.tasks_mean + all.tasks_mean > 0"
    )


@pytest.mark.parametrize(("name", "count"), [("embedding", 8), ("groups", 4)])
def test_mini_scale_runs_the_rows_that_the_claims_page_lists(name: str, count: int) -> None:
    assert len(planned(name, "mini").variants) == count


def test_plan_lists_decidable_claims_with_their_cost(tmp_path: Path) -> None:
    def decidability(seeds: int, tasks: Path | None = None, dry: bool = True) -> dict[str, Decidability]:
        request = ExperimentRequest("paper", Path("out"), tasks=tasks, seeds=seeds, dry_run=dry)
        plan = make_plan(recipe.load_experiment("depth"), request)
        return {claim.statement: judge_decidability(plan, claim) for claim in plan.claims}

    parameters, deeper, first, _ = one = list(decidability(1).values())
    assert (parameters.reason, parameters.device_hours) == ("", 0.0), "counts need no second seed"
    assert all("one seed" in verdict.reason for verdict in one[1:])
    assert deeper.device_hours > first.device_hours > 0
    two = list(decidability(2).values())
    assert not any(verdict.reason for verdict in two)
    assert [f.device_hours for f in two] == pytest.approx([f.device_hours for f in one]), "always two seeds"
    untested = list(decidability(2, dry=False).values())
    assert [bool(verdict.reason) for verdict in untested] == [False, False, True, True] and "--tasks" in untested[
        2
    ].reason
    # The cost includes the runs that the compared ones start from: that of 1 layer for 3 and for 6 layers.
    description = describe_plan(planned("depth", "paper"))
    hours = {run.variant: run.device_hours for run in description.pretrainings}
    assert deeper.device_hours == pytest.approx(2 * sum(hours[name] for name in ("l1", "l3", "l6", "l12")))
    text = description.to_text()
    assert "cannot be decided: one seed" in text and "decided by counting" in text
    assert [not decidability.reason for _, decidability in description.claims] == [True, False, False, False]
    overall = describe_plan(planned("overall", "paper"))
    hours = {run.variant: run.device_hours for run in overall.pretrainings}
    (faster,) = (decidability for claim, decidability in overall.claims if "trains faster" in claim.statement)
    compared = ("large", "xxlarge", "bert-large")  # the speed of bert-large is the unit
    assert faster.device_hours == pytest.approx(2 * sum(hours[name] for name in compared))


def test_claim_about_a_skipped_task_is_undecidable() -> None:
    plan = make_plan(recipe.load_experiment("overall"), ExperimentRequest("paper", Path("out"), seeds=2, dry_run=True))
    claim = PaperClaim("", "", "", (Condition("large.task_squad1_f1", "above", 0.5),))
    assert not judge_decidability(plan, claim).reason
    plan = dataclasses.replace(plan, skipped={"squad1": "no such file"})
    assert "--tasks" in judge_decidability(plan, claim).reason


def judge(plan: ExperimentPlan, *values: str) -> str:
    """Return the reason why the plan cannot decide a claim about these values, `VARIANT.METRIC`."""
    conditions = tuple(Condition(value, "above", 0.5) for value in values)
    return judge_decidability(plan, PaperClaim("", "", "", conditions)).reason


def test_claim_about_a_variant_outside_the_plan_is_undecidable() -> None:
    plan = select("embedding", "all-64")
    for metric in ("mlm_accuracy", "parameters"):
        assert judge(plan, f"all-128.{metric}") == "the plan leaves out the variants all-128"
    assert judge(select("overall", "base", "large"), "large.speedup") == "the plan leaves out the variants bert-large"


def test_claim_about_a_value_not_measured_is_undecidable() -> None:
    plan = select("sharing", "all", "none")  # its only task is minimal pairs
    variants = dict(plan.experiment.variants)
    variants["all"] = dataclasses.replace(variants["all"], has_tasks=False)
    plan = make_plan(dataclasses.replace(plan.experiment, variants=variants), plan.request)
    for metric in ("tasks_mean", "minimal_pairs_accuracy"):
        assert judge(plan, f"none.{metric}") == ""
        assert judge(plan, f"all.{metric}") == f"the plan does not measure all.{metric}"
    assert judge(plan, "none.task_rte") == "the plan does not measure none.task_rte"
    assert judge(planned("glue", "paper"), "ensemble.parameters") == "the plan does not measure ensemble.parameters"
    assert "does not measure" in judge(planned("sharing", "paper"), "all.minimal_pairs_accuracy")


def test_ensemble_needs_the_tasks_of_all_its_members() -> None:
    experiment = recipe.load_experiment("glue")
    request = ExperimentRequest("paper", Path("out"), dry_run=True)
    ensemble = next(name for name, variant in experiment.variants.items() if variant.members)
    members = experiment.variants[ensemble].members
    reordered = {ensemble: experiment.variants[ensemble], **experiment.variants}
    plan = make_plan(dataclasses.replace(experiment, variants=reordered), request)
    (together,) = (run for run in plan.runs if run.variant == ensemble and run.seed == 0)
    assert all(len(stage.needs) == len(members) for stage in together.tasks.values()) and together.tasks
    without = dataclasses.replace(experiment.variants[members[0]], has_tasks=False)
    experiment = dataclasses.replace(experiment, variants={**experiment.variants, members[0]: without})
    with pytest.raises(ConfigError, match=f"a member of {ensemble} has no result on"):
        make_plan(experiment, request)


@pytest.mark.parametrize("name", ["glue", "squad-race"])
def test_ensemble_is_compared_with_each_of_its_members(name: str) -> None:
    experiment = recipe.load_experiment(name)
    (claim,) = (claim for claim in experiment.claims if "best member" in claim.statement)
    compared = {condition.minus for condition in claim.conditions if condition.value == "ensemble.tasks_mean"}
    assert compared == {(f"{member}.tasks_mean",) for member in experiment.variants["ensemble"].members}


# Lowest and highest values of models that have learned nothing but the frequencies of pieces and classes.
NOTHING = {
    "mlm_accuracy": (0.0, 0.15), "own_mlm_accuracy": (0.0, 0.15), "mlm_loss": (5.0, 8.0), "sop_accuracy": (0.49, 0.51),
    "below_unigram_entropy": (-1.0, 0.5), "nsp_accuracy": (0.49, 0.51), "tasks_mean": (0.4, 0.6),
    "tasks_above_majority": (-0.1, 0.02), "task_race": (0.2, 0.4), "l2_mean": (1.0, 9.0), "l2_last": (1.0, 9.0),
    "l2_variation": (0.0, 2.0), "degrees_mean": (5.0, 60.0), "degrees_last": (5.0, 60.0),
    "degrees_variation": (0.0, 9.0),
}  # fmt: skip
# Metrics that do not depend on learning: counts and times.
OF_ANY = {"parameters", "block_parameters", "paper_count", "layers", "steps", "seconds", "speedup", "total_seconds"}


@pytest.mark.parametrize("name", recipe.experiment_names())
def test_no_claim_about_learning_holds_for_random_models(name: str) -> None:
    """The values of the variants differ at random, and the two seeds of a variant agree."""
    experiment = recipe.load_experiment(name)
    rng = random.Random(0)
    for _ in range(40):
        values = {
            v: {metric: dict.fromkeys((0, 1), exact_value(rng.uniform(*limits))) for metric, limits in NOTHING.items()}
            for v in experiment.variants
        }
        for claim in experiment.claims:
            if not {r.partition(".")[2] for c in claim.conditions for r in c.references} <= OF_ANY:
                assert check_claim(claim, values).verdict != HOLDS, claim.statement


def test_misspelled_experiment_gets_a_suggestion() -> None:
    assert "did you mean 'sharing'?" in albert("reproduce", "shraing", "--dry-run", expect=2).err


GUARD = ["a.sop_accuracy"]


def claiming(*conditions: dict[str, object], **more: object) -> dict[str, object]:
    return {"claims": [{"statement": "x", "source": "y", "margin": "z", "conditions": list(conditions), **more}]}


@pytest.mark.parametrize(
    ("change", "message"),
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
        (claiming({"value": "a.params", "must": "above", "bound": 1}), "unknown metric 'params'"),
        (claiming({"value": "a.mlm_loss", "must": "less", "bound": 1}), "mine: claims.0.conditions.0.must is 'less'"),
        (claiming({"value": "a.mlm_loss", "must": "less", "bound": 1}), "use 'above', 'below' or 'equal'"),
        (claiming({"value": 3, "must": "above", "bound": 1}), "claims.0.conditions.0.value is 3"),
        (
            claiming({"value": "a.mlm_acuracy", "must": "above", "bound": 1}, learned=GUARD),
            "did you mean 'mlm_accuracy'?",
        ),
        (claiming({"value": "a.mlm_loss", "must": "above", "bond": 1}), "did you mean 'bound'?"),
    ],
)
def test_invalid_experiment_is_rejected(change: dict[str, object], message: str) -> None:
    scale = {"about": "", "base": "mini/docs"}
    values = {"title": "T", "source": "S", "scales": dict.fromkeys(SCALES, scale)}
    with pytest.raises(ConfigError) as error:
        recipe.parse_experiment({**values, "variants": {"a": {"title": "A"}}, **change}, "mine")
    assert message in f"{error.value} {error.value.hint}"


def test_errors_of_a_users_experiment_begin_with_its_path(tmp_path: Path) -> None:
    mine = tmp_path / "own3.toml"
    text = 'title = "T"\nsource = "S"\nextends = "experiments/common"\n[variants.a]\ntitle = "A"\n'
    mine.write_text(text)
    experiment = recipe.load_experiment(str(mine))
    assert (experiment.name, experiment.argument) == ("own3", str(mine))
    for line in ("after = 3", 'after = "c"', "mini.model.hiden_size = 8"):
        mine.write_text(text + line)
        with pytest.raises(ConfigError) as error:
            make_plan(recipe.load_experiment(str(mine)), ExperimentRequest("mini", tmp_path, dry_run=True))
        assert error.value.message.startswith(str(mine))


@pytest.mark.parametrize("missing", ["title", "source", "scales", "variants"])
def test_experiment_without_a_required_key_is_rejected(missing: str) -> None:
    values: dict[str, object] = {"title": "T", "source": "S", "scales": {}, "variants": {}}
    del values[missing]
    with pytest.raises(ConfigError, match=missing):
        recipe.parse_experiment(values, "mine")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("variants.all.mini.model.hiden_size = 8", "hiden_size"),
        ('variants.all.mini.model = "albert-base"', "model is 'albert-base'"),
        ("variants.all.mini.schedule = 3", "schedule is 3"),
        ("variants.all.mini.schedule.total_steps = [3]", "schedule.total_steps is [3]"),
        ("variants.all.mini.warm_start = 3", "warm_start is 3"),
        ("scales.mini = 3", "scales.mini"),
    ],
)
def test_validate_checks_the_recipe_of_every_variant(lines: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "experiments/sharing"\n{lines}\n')
    assert message in albert("recipes", "validate", path, expect=2).err


def test_variant_that_depends_on_itself_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "circle.toml"
    path.write_text('extends = "experiments/depth"\nvariants.l1.after = "l3"\n')
    with pytest.raises(ConfigError, match="depends on itself"):
        recipe.load_experiment(str(path))


def test_unknown_task_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tasks.toml"
    path.write_text('extends = "experiments/sharing"\nscales.mini.tasks = ["rtr"]\n')
    with pytest.raises(ConfigError, match="no task is called 'rtr'"):
        make_plan(recipe.load_experiment(str(path)), ExperimentRequest("mini", Path("out")))


def test_claims_page_lists_experiments_and_tables() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lab" / "claims.md").read_text(encoding="utf-8")
    missing = [
        name for name in recipe.experiment_names() if f"`{name}`" not in page and f"reproduce {name}" not in page
    ]
    assert set(missing) <= {"init", "long-inputs"}, "the other experiments are from the paper"
    assert all(f"Table {number}" in page or f"Tables {number}" in page for number in range(1, 15))
    assert {f"§{n}" for n in ("4.1", "4.2.1", "4.5")} <= set(re.findall(r"§[\d.]*\d", page))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("table4", "experiments of Table 4: sharing (Table 4, §4.5)"),
        ("Table 1", "experiments of Table 1: degradation (Table 1 and Figure 1 of version 1), sizes (Table 1, and"),
        ("table 99", "experiments: curves"),  # the list of all
        ("shareing", "did you mean 'sharing'?"),
    ],
)
def test_unknown_experiment_hints_at_a_table_or_a_similar_name(name: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="unknown experiment") as caught:
        recipe.load_experiment(name)
    assert caught.value.hint is not None and caught.value.hint.startswith(hint)
