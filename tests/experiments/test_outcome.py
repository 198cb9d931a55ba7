"""Tests of `experiments.outcome`: the paper's scores give the paper's averages, and errors follow the predictions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

import pytest

from albert_cli.counting.paper import find_paper_figure, paper_count
from albert_cli.experiments import outcome, pages, recipe
from albert_cli.experiments.claims import HOLDS, NOISY
from albert_cli.experiments.experiment import Condition, PaperClaim
from albert_cli.experiments.plan import ExperimentPlan, ExperimentRequest, Stage
from albert_cli.experiments.stages import make_plan
from albert_cli.tasks.registry import paper_metric_names
from tests.helpers.experiments import finish_stage
from tests.helpers.results import ensemble_result, evaluation_result

TASKS = {"SQuAD1.1": "squad1", "SQuAD2.0": "squad2", "MNLI": "mnli", "SST-2": "sst2", "RACE": "race"}
TASKS |= {name: name.lower().replace("-", "") for name in ("QNLI", "QQP", "RTE", "MRPC", "CoLA", "STS-B")}


def as_printed(name: str, out: Path, table: int = 0) -> tuple[ExperimentPlan, dict[str, dict[str, str]]]:
    """Return a plan at the paper's scale whose result files have a table's scores, and the table by row and column."""
    plan = make_plan(recipe.load_experiment(name), ExperimentRequest("paper", out, dry_run=True))
    printed = plan.experiment.tables[table]
    rows = {row: dict(zip(printed.columns, cells, strict=True)) for row, cells in printed.rows.items()}
    for run in plan.runs:
        if (cells := rows.get(run.variant)) is None:
            continue
        speed = float(cells.get("speedup", "1.0").rstrip("x"))
        trained = {"steps": 1000, "seconds": 3600 / speed}
        finish_stage(plan, run.pretrain, trained)
        probed = {
            f"{name.lower()}_accuracy": float(cells[name]) / 100 for name in ("MLM", "NSP", "SOP") if name in cells
        }
        finish_stage(plan, run.probe, probed)
        for column, task in ((c, t) for c, t in TASKS.items() if t in run.tasks and c in cells):
            values = [float(value) / 100 for value in cells[column].split("/")]
            scores = {name: [value] * 5 for name, value in zip(paper_metric_names(task), values, strict=True)}
            other = {"f1": [0.1] * 5, "em": [0.1] * 5} if task == "squad2" else {}  # at threshold 0
            result = evaluation_result([0.1], task=task, title=column, all_scores=scores | other, majority=0.0)
            finish_stage(plan, run.tasks[task], result.to_json())
    return plan, rows


@pytest.mark.parametrize("name", ["overall", "equal-time", "sharing", "embedding", "sentence-loss", "depth", "width"])
def test_paper_scores_give_paper_averages_and_speedups(name: str, tmp_path: Path) -> None:
    plan, rows = as_printed(name, tmp_path)
    result = outcome.read_outcome(plan)
    assert set(plan.variants) - {"three"} == set(rows)
    for variant, cells in rows.items():
        ours = result.values[variant]
        assert 100 * ours["tasks_mean"][0] == pytest.approx(float(cells["Avg"]), abs=0.05 + 1e-9)
        if "speedup" in cells:
            assert ours["speedup"][0] == pytest.approx(float(cells["speedup"].rstrip("x")))
        f1, em = (100 * ours[f"task_squad2_best_{metric}"][0] for metric in ("f1", "em"))
        assert cells["SQuAD2.0"] == f"{f1:.1f}/{em:.1f}"


@pytest.mark.parametrize("name", ["overall", "sentence-loss", "glue", "squad-race"])
def test_paper_scores_have_no_gap_to_the_paper(name: str, tmp_path: Path) -> None:
    plan, rows = as_printed(name, tmp_path)
    result = outcome.read_outcome(plan)
    printed = plan.experiment.tables[0]
    comparison = result.compare_with_paper(printed)
    for row, cells in comparison.items():
        variant = row if row in plan.variants else str(printed.compare_with)
        for column, pairs in cells.items():
            shown = [f"{ours:.1f}" for ours, _ in pairs]
            assert "/".join(shown) == rows[variant][column].rstrip("x") or column == "Avg", (row, column)
            assert [theirs for _, theirs in pairs] == [float(x) for x in rows[row][column].rstrip("x").split("/")]
    assert comparison.keys() == rows.keys() - {
        row for row in rows if set(rows[row].values()) & {"–"} and row not in comparison
    }
    if name == "glue":
        assert (
            pages.format_gap(comparison["RoBERTa-large"]["RTE"]) == "89.2 (+2.6)" and comparison.keys() == rows.keys()
        )


def test_ensemble_row_counts_seeds_of_its_tasks(tmp_path: Path) -> None:
    plan = make_plan(recipe.load_experiment("glue"), ExperimentRequest("paper", tmp_path, dry_run=True))
    seeds = {0: 0.8, 1: 0.8}
    values = {name: {"mlm_accuracy": {0: 0.5}} for name in plan.variants} | {"ensemble": {"task_rte": seeds}}
    page = pages.write_report(outcome.Outcome(plan, values, task_titles={"rte": "RTE"})).read_text(encoding="utf-8")
    assert "2\N{NO-BREAK SPACE}seeds" in page and "0\N{NO-BREAK SPACE}seeds" not in page


def test_missing_variant_is_not_compared() -> None:
    plan = make_plan(recipe.load_experiment("glue"), ExperimentRequest("paper", Path("out"), dry_run=True))
    result = outcome.Outcome(plan, {"m15": {"task_rte": {0: 0.8}}})
    assert {"m15", "RoBERTa-large"} <= result.compare_with_paper(
        plan.experiment.tables[0]
    ).keys() and "m1" in plan.variants
    assert "m1" not in result.compare_with_paper(plan.experiment.tables[0])


def test_average_over_other_tasks_is_not_compared() -> None:
    plan = make_plan(recipe.load_experiment("sharing"), ExperimentRequest("paper", Path("out"), dry_run=True))
    (table,) = plan.experiment.tables
    few = {"task_mrpc": {0: 0.4}, "task_rte": {0: 0.5}, "tasks_mean": {0: 0.45}}
    assert outcome.Outcome(plan, {"all": few}).compare_with_paper(table) == {}
    spans = ("squad1", "squad1_f1", "squad1_em", "squad2", "squad2_best_f1", "squad2_best_em")
    every_task = {f"task_{name}": {0: 0.8} for name in (*spans, "mnli", "sst2", "race")} | {"tasks_mean": {0: 0.8}}
    compared = outcome.Outcome(plan, {"all": every_task}).compare_with_paper(table)
    assert compared["all"]["Avg"] == [(80.0, 80.1)]


def test_ensembles_are_compared_with_f1_on_mrpc() -> None:
    plan = make_plan(recipe.load_experiment("glue"), ExperimentRequest("paper", Path("out"), dry_run=True))
    single, ensembles = plan.experiment.tables
    values = {"task_mrpc": {0: 0.9}, "task_mrpc_f1": {0: 0.93}}
    result = outcome.Outcome(plan, {"ensemble": values, "m15": values})
    assert result.compare_with_paper(ensembles)["ensemble"]["MRPC"] == [(93.0, 93.4)]
    assert result.compare_with_paper(single)["m15"]["MRPC"] == [(90.0, 90.9)]


def test_f1_of_mrpc_is_read_from_its_result(tmp_path: Path) -> None:
    plan = make_plan(recipe.load_experiment("glue"), ExperimentRequest("paper", tmp_path, dry_run=True))
    (ensemble,) = (run for run in plan.runs if run.variant == "ensemble")
    result = ensemble_result(0.9, task="mrpc", scores={"accuracy": 0.9, "f1": 0.93}, labels=["0", "1"])
    finish_stage(plan, ensemble.tasks["mrpc"], result.to_json())
    values = outcome.read_outcome(plan).values["ensemble"]
    assert values["task_mrpc"][0] == 0.9 and values["task_mrpc_f1"][0] == 0.93


def test_activations_without_dropout_are_smaller(tmp_path: Path) -> None:
    plan = make_plan(recipe.load_experiment("dropout"), ExperimentRequest("paper", tmp_path, dry_run=True))
    result = outcome.read_outcome(plan)
    (checked,) = (checked for checked in result.claims if "memory" in checked.claim.statement)
    assert checked.verdict == HOLDS
    medians = [result.median(variant, "activation_bytes") or 0 for variant in ("without", "with")]
    assert 0 < medians[0] < medians[1]


PARAMETERS = [
    (name, table)
    for name in recipe.experiment_names()
    for table, printed in enumerate(recipe.load_experiment(name).tables)
    if "parameters" in printed.columns and printed.version != "version 1" and name != "sizes"
]


@pytest.mark.parametrize(("name", "table"), PARAMETERS)
def test_planned_models_have_the_paper_parameters(name: str, table: int) -> None:
    """Rounded counts equal the paper's, or `albert params` explains the difference; `sizes` is tested separately."""
    plan = make_plan(recipe.load_experiment(name), ExperimentRequest("paper", Path("out"), dry_run=True))
    printed = plan.experiment.tables[table]
    models = {run.variant: run.recipe.model for run in plan.runs if run.recipe}
    assert models.keys() >= printed.rows.keys()
    for row, cells in printed.rows.items():
        millions = cells[printed.columns.index("parameters")]
        paper = find_paper_figure(models[row])
        is_explained = paper is not None and paper.note != ""
        assert millions == f"{round(paper_count(models[row]) / 1e6)}M" or is_explained, row


def journal(plan: ExperimentPlan, stage: Stage | None, paces: Sequence[float]) -> None:
    """Write a run's journal with a line every hundred steps, which take the seconds of `paces`."""
    assert stage is not None
    plan.directory(stage).mkdir(parents=True, exist_ok=True)
    rows = [{"step": 100 * n, "loss": 1.0, "seconds": at} for n, at in enumerate(accumulate(paces), start=1)]
    (plan.directory(stage) / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.parametrize(
    ("seconds", "paces", "verdict"),
    [
        (0.1, (0.1,), NOISY),  # one journal line per run, so the equal seconds have an unknown error
        (100.0, (25.0, 25.1, 24.9, 25.0), HOLDS),
        (100.0, (5.0, 90.0, 30.0, 5.0), NOISY),  # the speed varies too much
    ],
)
def test_seconds_have_the_error_of_their_pace(
    seconds: float, paces: tuple[float, ...], verdict: str, tmp_path: Path
) -> None:
    plan = make_plan(recipe.load_experiment("equal-time"), ExperimentRequest("mini", tmp_path, dry_run=True))
    for run in plan.runs:
        journal(plan, run.pretrain, paces if run.variant == "xxlarge" else paces[::-1])
        finish_stage(plan, run.pretrain, {"steps": 400, "seconds": seconds})
    assert [finding.verdict for finding in outcome.read_outcome(plan).claims[0].findings] == [verdict, verdict]


@cache
def predictions(task: str, count: int) -> str:
    """Return prediction lines of `count` examples, nine of ten correct, as spans or as classes."""
    has_spans = paper_metric_names(task)[0].endswith("f1")
    rows = []
    for n in range(count):
        right = n % 10 != n // 10 % 10
        span = {"answers": ["a"], "f1": float(right), "em": float(right)}
        label = "a" if right else "b"
        prediction = span if has_spans else {"label": label, "probabilities": {"a": 1.0}}
        rows.append({"id": str(n), "prediction": "a", **prediction})
    return "".join(f"{json.dumps(row)}\n" for row in rows)


@pytest.mark.parametrize(("value", "bound"), [("task_squad1_f1", 0.86), ("tasks_above_majority", 0.36)])
@pytest.mark.parametrize(("examples", "verdict"), [(None, NOISY), (50, NOISY), (1_000, HOLDS)])
def test_task_scores_on_few_examples_are_noisy(
    value: str, bound: float, examples: int | None, verdict: str, tmp_path: Path
) -> None:
    """Without predictions the error of a score is unknown."""
    claim = PaperClaim("", "", "", (Condition(f"with.{value}", "above", bound),))
    experiment = dataclasses.replace(recipe.load_experiment("dropout"), claims=(claim,))
    plan = make_plan(experiment, ExperimentRequest("paper", tmp_path, seeds=2, dry_run=True))
    for task, stage in ((task, stage) for run in plan.runs for task, stage in run.tasks.items()):
        if examples:
            plan.directory(stage).joinpath("run-0").mkdir(parents=True)
            (plan.directory(stage) / "run-0/predictions.dev.jsonl").write_text(predictions(task, examples))
        scores = {name: [0.9] for name in paper_metric_names(task)}
        majority = 0.5 if task == "sst2" else None
        result = evaluation_result(task=task, all_scores=scores, labels=["a", "b"], majority=majority)
        finish_stage(plan, stage, result.to_json())
    assert outcome.read_outcome(plan).claims[0].verdict == verdict


@pytest.mark.parametrize(("paces", "verdict"), [((), NOISY), ((5.0, 5.1, 5.0), HOLDS), ((1.0, 9.0, 90.0), NOISY)])
def test_speedup_has_the_error_of_both_runs(paces: tuple[float, ...], verdict: str, tmp_path: Path) -> None:
    plan = make_plan(recipe.load_experiment("overall"), ExperimentRequest("mini", tmp_path, dry_run=True))
    for run in plan.runs:
        factor = {"large": 0.5, "xxlarge": 4.0}.get(run.variant, 1.0)
        journal(plan, run.pretrain, [factor * pace for pace in (paces if run.variant == "large" else paces[::-1])])
        finish_stage(plan, run.pretrain, {"steps": 10, "seconds": 1000 * factor})
    (claim,) = (j for j in outcome.read_outcome(plan).claims if "trains faster" in j.claim.statement)
    assert claim.verdict == verdict


def test_matched_steps_follow_measured_seconds(tmp_path: Path) -> None:
    """With the paper's speeds the steps are the paper's: 400,000 of BERT-large take as long as 125,000 of xxlarge."""
    request = ExperimentRequest("paper", tmp_path, dry_run=True)
    plan = make_plan(recipe.load_experiment("equal-time"), request)
    needed = [[stage.kind for stage in plan.unfinished([speed])] for speed in plan.speeds]
    assert needed == [["vocabulary", "data", "speed"]] * 2
    for stage in plan.stages.values():
        if stage.kind == "speed":
            seconds = 34 * 3600 / 400_000 if stage.title.startswith("BERT") else 34 * 3600 / 125_000
            finish_stage(plan, stage, {"recipe_step": {"seconds": seconds}})
    again = make_plan(recipe.load_experiment("equal-time"), request)
    steps = {run.variant: run.recipe.schedule.total_steps for run in again.runs if run.recipe}
    assert steps == {"xxlarge": 125_000, "bert-large": 400_000} and all(
        again.is_finished(speed) for speed in again.speeds
    )
    assert again.matched_times["bert-large"].steps_by_flops > 2 * 400_000, "equal FLOPs give another number of steps"


def test_times_on_different_devices_are_not_measured(tmp_path: Path) -> None:
    plan = make_plan(recipe.load_experiment("equal-time"), ExperimentRequest("smoke", tmp_path, seeds=2, dry_run=True))
    for run in plan.runs:
        finish_stage(plan, run.pretrain, {"steps": 10, "seconds": 10.0}, "a laptop")
    same = outcome.read_outcome(plan)
    assert all({"seconds", "steps"} <= metrics.keys() for metrics in same.values.values())
    finish_stage(plan, plan.runs[-1].pretrain, {"steps": 10, "seconds": 1.0}, "a GPU")
    mixed = outcome.read_outcome(plan)
    assert not any({"seconds", "speedup"} & metrics.keys() for metrics in mixed.values.values())
    assert all("steps" in metrics for metrics in mixed.values.values())
    assert "a GPU and a laptop" in mixed.left_out["comparisons of training times"]
    page = pages.write_report(mixed).read_text(encoding="utf-8")
    assert "Skipped comparisons of training times" in page


def test_speeds_of_another_device_leave_times_out(tmp_path: Path) -> None:
    request = ExperimentRequest("smoke", tmp_path, seeds=1, dry_run=True)
    experiment = recipe.load_experiment("equal-time")
    for speed in make_plan(experiment, request).speeds:
        finish_stage(make_plan(experiment, request), speed, {"recipe_step": {"seconds": 1.0}}, "a GPU")
    plan = make_plan(experiment, request)  # the measured speeds determine the steps, and so the stages
    for run in plan.runs:
        finish_stage(plan, run.pretrain, {"steps": 10, "seconds": 10.0}, "a laptop")
    result = outcome.read_outcome(plan)
    assert result.left_out and not any("seconds" in metrics for metrics in result.values.values())


def test_devices_do_not_matter_without_claims_on_time(tmp_path: Path) -> None:
    plan = make_plan(recipe.load_experiment("sharing"), ExperimentRequest("smoke", tmp_path, seeds=1, dry_run=True))
    for run in plan.runs:
        finish_stage(plan, run.pretrain, {"steps": 10, "seconds": 10.0}, f"the machine of {run.variant}")
    assert len(plan.runs) > 1 and outcome.read_outcome(plan).left_out == {}


def test_speed_stage_depends_on_the_device(tmp_path: Path) -> None:
    experiment = recipe.load_experiment("equal-time")
    ids = []
    for device in ("cpu", "cuda"):
        plan = make_plan(experiment, ExperimentRequest("smoke", tmp_path, device=device, dry_run=True))
        ids.append({stage.id for stage in plan.speeds})
    assert ids[0] and not ids[0] & ids[1]
