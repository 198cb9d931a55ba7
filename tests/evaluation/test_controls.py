"""Tests of controls: the same seeds, fine-tuned from the weights of step 0 or from random weights."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from albert_cli import store
from albert_cli.errors import ConfigError, DivergedError
from albert_cli.evaluation import parallel
from albert_cli.evaluation.controls import parse_controls
from albert_cli.evaluation.output import best_run
from albert_cli.model import hub
from albert_cli.model.heads import PretrainingModel
from albert_cli.report.build import build_report
from albert_cli.results import ControlResult, EvaluationResult, read_result
from albert_cli.tasks.glue import GLUE_SCORE_TASKS
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.task_recipe import load_recipe
from albert_cli.training.task_setup import PreparedTask
from tests.helpers.command import albert
from tests.helpers.markdown import find_table
from tests.helpers.results import evaluation_result, without_times
from tests.helpers.task_runs import (
    QUICK,
    SHAPE,
    as_text,
    build_model,
    diverge_random_mnli,
    diverge_runs,
    evaluate,
    prepare,
)

EVAL_ONCE = (*QUICK, "train.eval_every=0")  # evaluates after the last step only
CONTROLS = ("init", "random")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, encoder: Path, tiny_vocabulary: Path) -> Path:
    """A pretraining run with one step and the weights that it started from."""
    run = tmp_path_factory.mktemp("controls") / "run"
    shutil.copytree(encoder, run / "step-00000010")
    torch.manual_seed(1)
    with store.commit_directory(run / "init", "checkpoint") as staging:
        hub.write_checkpoint(PretrainingModel(SHAPE), staging, "ForPreTraining")
        Vocabulary.load(tiny_vocabulary).copy_to(staging, SHAPE.max_position_embeddings)
    return run


@pytest.fixture(scope="module")
def evaluation_with_controls(
    tmp_path_factory: pytest.TempPathFactory, run: Path, glue: Path
) -> tuple[Path, dict[str, Any]]:
    """The output directory and the result of an evaluation of CoLA with both controls."""
    out = tmp_path_factory.mktemp("controlled") / "out"
    return out, evaluate("cola", str(run), str(glue), out, 2, EVAL_ONCE, "cpu", nproc=2, controlled=CONTROLS)


@pytest.mark.parametrize("name", ["", "step-00000010", "init"])
def test_control_init_loads_step_0_of_the_run(name: str, run: Path, glue: Path) -> None:
    prepared = prepare("cola", str(run / name), str(glue), (*EVAL_ONCE, "model.weights=init"), "cpu")
    assert prepared.checkpoint.directory == run / "init" and prepared.recipe.model.weights == "init"
    model, expected = build_model(prepared, 0), hub.read_checkpoint(run / "init").tensors
    encoder_tensors = {name: tensor for name, tensor in model.state_dict().items() if name.startswith("encoder.")}
    assert encoder_tensors and all(torch.equal(tensor, expected[name]) for name, tensor in encoder_tensors.items())


def test_control_init_without_step_0_is_rejected(encoder: Path, glue: Path, tmp_path: Path) -> None:
    shutil.copytree(encoder, tmp_path / "run" / "step-00000010")
    for checkpoint in (encoder, tmp_path / "run"):
        with pytest.raises(ConfigError, match=r"there are no weights of step 0 .*/init\)"):
            evaluate("cola", str(checkpoint), str(glue), tmp_path / "out", 1, EVAL_ONCE, "cpu", controlled=["init"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["checkpoint", "continues"])
def test_control_init_of_a_warm_start_names_the_parent(key: str, encoder: Path, glue: Path, tmp_path: Path) -> None:
    step = Path(shutil.copytree(encoder, tmp_path / "run" / "step-00000010"))
    (step / "recipe.toml").write_text(f'[warm_start]\n{key} = "the/parent"\n')
    store.seal(step, "checkpoint")
    with pytest.raises(ConfigError) as raised:
        evaluate("cola", str(tmp_path / "run"), str(glue), tmp_path / "out", 1, EVAL_ONCE, "cpu", controlled=["init"])
    assert "use its parent instead: --checkpoint the/parent" in str(raised.value.hint)


@pytest.mark.parametrize("name", CONTROLS)
def test_control_equals_a_separate_evaluation(
    name: str, evaluation_with_controls: tuple[Path, dict[str, Any]], run: Path, glue: Path, tmp_path: Path
) -> None:
    out, result = evaluation_with_controls
    separate = evaluate("cola", str(run), str(glue), tmp_path / "out", 2, (*EVAL_ONCE, f"model.weights={name}"), "cpu")
    assert separate["protocol"]["weights"] == name
    assert without_times(store.read_json(out / "controls" / name / "results.json")) == without_times(separate)
    control = result["controls"][name]
    assert (control["scores_by_seed"], control["median"]) == (separate["scores_by_seed"], separate["median"])


def test_controls_of_a_finished_evaluation_train_nothing(
    evaluation_with_controls: tuple[Path, dict[str, Any]], run: Path, glue: Path
) -> None:
    out, result = evaluation_with_controls
    before = {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")}
    assert len(before) == 2 * (1 + len(CONTROLS))
    assert evaluate("cola", str(run), str(glue), out, 2, EVAL_ONCE, "cpu", controlled=CONTROLS) == result
    assert {path: path.stat().st_mtime_ns for path in out.rglob("model.safetensors")} == before


def test_report_has_controls_before_classical_baselines(
    evaluation_with_controls: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    build_report([evaluation_with_controls[0]], None, markdown=tmp_path / "report.md")
    (row,) = find_table((tmp_path / "report.md").read_text(), "task", "classical baseline")
    columns = [name for name in row if name in ("same init", "random weights", "classical baseline")]
    assert columns == ["same init", "random weights", "classical baseline"]
    expected = [evaluation_with_controls[1]["controls"][name]["median"] for name in CONTROLS]
    assert [row[name].split()[0] for name in columns[:2]] == [f"{100 * median:.1f}" for median in expected]


def test_suite_controls_cover_every_task(run: Path, glue: Path, tmp_path: Path) -> None:
    call = ["eval", "glue", "--checkpoint", run, "--data", glue, "--device", "cpu", "--runs", 1, "--recipes", "mini"]
    albert(*call, "--controls", "random", "-s", "train.save_every=0", "--out", tmp_path / "out")
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert all(list(task["controls"]) == ["random"] for task in result["tasks"].values())
    protocols = {name: task["protocol"] for name, task in result["tasks"].items()}
    epochs = {name: protocol["epochs"] for name, protocol in protocols.items()}
    # The recipes' 5, 3 and 1 epochs, rounded to whole steps of 32 examples: CoLA and SST-2 have 12, MNLI 24.
    assert epochs == {"cola": 5.33, "sst2": 2.67, "mnli": 1.33}
    assert all((protocol["eval_every"], protocol["max_seq_length"]) == (0, 48) for protocol in protocols.values())


def test_controls_have_rows_below_their_task() -> None:
    above = ControlResult(scores_by_seed={"0": 0.5, "1": 0.6}, median=0.55, spread=0.1, every_seed_above=True)
    controls = {"init": above, "random": ControlResult(diverged={"0": "step 3"})}
    tasks = {
        "cola": evaluation_result([0.7, 0.8], title="CoLA", metric="mcc", controls=controls).to_json(),
        "rte": evaluation_result([0.6, 0.7], title="RTE", controls={"init": above}).to_json(),
    }
    table, _, _ = as_text({"kind": "suite", "tasks": tasks, "tasks_scored": 2, "glue_score": 0.7}).partition("\n\n")
    rows = [re.split(r"  +", line.strip()) for line in table.splitlines()]
    names = [row[0] for row in rows[2:]]
    assert names == ["CoLA", "same init", "random weights", "RTE", "same init", "GLUE score"]
    header = table.splitlines()[0]
    end_of_median = header.index("median") + len("median")
    lines = [line for line in table.splitlines()[2:] if "weights" not in line]  # all random seeds diverged
    assert [line[:end_of_median].split()[-1] for line in lines] == ["75.0", "55.0", "65.0", "55.0", "70.0"]


def test_control_notes_compare_all_seeds_of_each_task() -> None:
    def task(title: str, **above: bool | None) -> dict[str, Any]:
        controls = {name: ControlResult(every_seed_above=is_above) for name, is_above in above.items()}
        return evaluation_result(title=title, controls=controls).to_json()

    tasks = {"a": task("A", init=True, random=False), "b": task("B", init=False, random=None)}
    printed = " ".join(as_text({"kind": "suite", "tasks": tasks, "tasks_scored": 2, "glue_score": 0.5}).split())
    assert "Every pretrained seed is above every seed of the same init on A, but not on B." in printed
    assert "On A not every pretrained seed is above every seed of the random weights." in printed


def test_control_that_diverges_is_reported(
    run: Path, glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from albert_cli.evaluation.single import AllSeedsDiverged, evaluate_task

    def diverge_if_random(prepared: PreparedTask, *arguments: Any) -> Any:
        if prepared.recipe.model.weights == "random":
            raise AllSeedsDiverged("CoLA", {"0": "step 3"})
        return evaluate_task(prepared, *arguments)

    monkeypatch.setattr(parallel, "evaluate_task", diverge_if_random)
    result = evaluate("cola", str(run), str(glue), tmp_path / "out", 1, EVAL_ONCE, "cpu", controlled=["random"])
    control = result["controls"]["random"]
    assert control == {"scores_by_seed": {}, "diverged": {"0": "step 3"}, "collapsed": {}}
    printed = as_text(result)
    assert "random weights" in printed
    assert "1 of 1" in printed


def test_controls_unknown_or_of_a_scored_task_are_rejected(run: Path, glue: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown control 'randon'"):
        parse_controls("init,randon")
    assert parse_controls("random, init,random") == ("random", "init")
    assert parse_controls(None) == ()
    evaluate("cola", str(run), str(glue), tmp_path / "out", 1, EVAL_ONCE, "cpu")
    tuned = str(tmp_path / "out" / "run-0")
    with pytest.raises(ConfigError, match="CoLA is only scored"):
        evaluate("cola", tuned, str(glue), tmp_path / "scored", 1, EVAL_ONCE, "cpu", controlled=["random"])


def copy_tasks(data: Path, folder: Path, *names: str) -> Path:
    """Copy the files of some of GLUE's tasks."""
    for name in names:
        shutil.copytree(data / name, folder / name)
    return folder


def test_suite_control_starts_from_its_best_mnli_run(run: Path, inference: Path, tmp_path: Path) -> None:
    data = copy_tasks(inference, tmp_path / "data", "MNLI", "RTE")
    overrides = (*EVAL_ONCE, "data.train_examples=8", "data.both_orders=true")
    out = tmp_path / "out"
    evaluate("glue", str(run), str(data), out, 2, overrides, "cpu", controlled=["random"])
    control = read_result(out / "mnli" / "controls" / "random" / "results.json")
    assert isinstance(control, EvaluationResult)
    result = store.read_json(out / "rte" / "controls" / "random" / "results.json")
    assert result["intermediate"] == store.fingerprint(best_run(out / "mnli" / "controls" / "random", control))
    assert not (out / "rte" / "mnli").exists()


def test_suite_runs_added_later_start_from_the_same_mnli_run(run: Path, inference: Path, tmp_path: Path) -> None:
    """The second call adds a better MNLI run; RTE still starts from the MNLI run of the first call."""
    out = tmp_path / "out"
    call = ("glue", str(run), str(copy_tasks(inference, tmp_path / "data", "MNLI", "RTE")), out)
    evaluate(*call, 1, EVAL_ONCE, "cpu", controlled=["random"])
    for folder in ("", "controls/random"):
        path = out / "mnli" / folder / "run-0" / "results.json"
        record = store.read_json(path)
        store.write_json(path, record | {"score": -1.0, "scores": record["scores"] | {"accuracy": -1.0}})
    evaluate(*call, 2, EVAL_ONCE, "cpu", controlled=["random"])
    for folder in ("", "controls/random"):
        mnli_result = read_result(out / "mnli" / folder / "results.json")
        assert isinstance(mnli_result, EvaluationResult)
        assert best_run(out / "mnli" / folder, mnli_result).name == "run-1"
        first_mnli_run = store.fingerprint(out / "mnli" / folder / "run-0")
        results = [store.read_json(out / "rte" / folder / f"run-{seed}" / "results.json") for seed in (0, 1)]
        assert [result["intermediate"] for result in results] == [first_mnli_run] * 2


@pytest.mark.parametrize("task", ["rte", "glue"])
def test_control_whose_mnli_model_diverges_is_reported(
    task: str,
    run: Path,
    inference: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    diverge_random_mnli(monkeypatch)
    out = tmp_path / "out"
    call = (task, str(run), str(copy_tasks(inference, tmp_path / "data", "MNLI", "RTE")), out, 1, EVAL_ONCE, "cpu")
    result = evaluate(*call, controlled=["random", "init"])
    controls = (result["tasks"]["rte"] if task == "glue" else result)["controls"]
    assert list(controls) == ["random", "init"]
    assert "median" in controls["init"] and "median" not in controls["random"]
    assert re.match("the model of MNLI to start from diverged: .*step 1: the loss", controls["random"]["diverged"]["0"])
    assert "warning: random weights: RTE: its only seed diverged" in capfd.readouterr().err
    assert "1 of 1" in as_text(result)
    rte_out = out / "rte" if task == "glue" else out
    assert not list(rte_out.glob("controls/random/run-*"))
    assert evaluate(*call, controlled=["random", "init"], nproc=2) == result, "also without a run to train"


def test_suite_task_with_another_encoder_trains_mnli(run: Path, inference: Path, tmp_path: Path) -> None:
    data = copy_tasks(inference, tmp_path / "data", "MNLI", "RTE")
    (tmp_path / "recipes").mkdir()
    for task in GLUE_SCORE_TASKS:
        (tmp_path / "recipes" / f"{task}.toml").write_text(f'extends = "finetune/{task}"\n')
    with (tmp_path / "recipes" / "rte.toml").open("a") as recipe:
        recipe.write("[model]\noverlap_heads = 1\n")
    out = tmp_path / "out"
    call = ("glue", str(run), str(data), out, 1, EVAL_ONCE, "cpu")
    evaluate(*call, controlled=["random"], recipes=str(tmp_path / "recipes"))
    for folder in ("", "controls/random"):
        mnli_run = out / "rte" / "mnli" / folder / "run-0"
        result = store.read_json(out / "rte" / folder / "results.json")
        assert result["intermediate"] == store.fingerprint(mnli_run)
        assert load_recipe(str(mnli_run / "recipe.toml"), ()).model.overlap_heads == 1


def test_suite_with_controls_reports_that_all_mnli_diverged(
    run: Path, inference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge_runs(monkeypatch, lambda job: job.prepared.task.name == "mnli")
    data = copy_tasks(inference, tmp_path / "data", "MNLI", "RTE", "WNLI")
    call = ("glue", str(run), str(data), tmp_path / "out", 1, EVAL_ONCE, "cpu")
    for nproc in (1, 2):
        with pytest.raises(DivergedError, match=r"^MNLI: its only seed diverged"):
            evaluate(*call, controlled=["random"], nproc=nproc)
    assert [path.parent.name for path in tmp_path.glob("out/*/results.json")] == ["wnli"]
