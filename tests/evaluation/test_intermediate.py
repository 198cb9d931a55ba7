"""Tests of tasks that start from a model of MNLI, of the GLUE suite, and of the submission to GLUE's server."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import re
import shutil
import weakref
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from albert_cli import store
from albert_cli.errors import ConfigError, InputError
from albert_cli.evaluation import parallel, submission
from albert_cli.evaluation.output import best_run
from albert_cli.evaluation.scoring import predict_examples, prepare_evaluation, scoring_request
from albert_cli.evaluation.single import evaluate_task
from albert_cli.model import hub
from albert_cli.model.encoder import Encoder
from albert_cli.results import EvaluationResult
from albert_cli.tasks.glue import GLUE
from albert_cli.tasks.registry import find_task
from albert_cli.training import intermediate
from albert_cli.training.intermediate import add_intermediate, missing_intermediate, use_intermediate
from albert_cli.training.task_recipe import load_recipe
from albert_cli.training.task_setup import PreparedTask, TaskRequest, prepare_task
from tests.helpers.checkpoints import replace_steps
from tests.helpers.command import albert
from tests.helpers.results import evaluation_result
from tests.helpers.task_runs import QUICK, SHAPE, as_text, build_model, evaluate, finetune, mnli, prepare, write


class Suite:
    """The evaluation of all tasks of `inference` with two seeds, and its submission."""

    def __init__(self, out: Path, encoder: Path, data: Path) -> None:
        self.out, self.zip, self.encoder, self.data = out / "suite", out / "zips" / "it.zip", encoder, data
        alive = weakref.WeakSet[Encoder]()
        self.models_created = 0
        self.most_models_at_once = 0
        original = Encoder.__init__

        def counted_init(encoder: Encoder, *arguments: Any, **options: Any) -> None:
            original(encoder, *arguments, **options)
            alive.add(encoder)
            self.models_created += 1
            self.most_models_at_once = max(self.most_models_at_once, len(alive))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Encoder, "__init__", counted_init)
            gc.disable()  # a model must be freed with its last reference, not by a later collection of cycles
            try:
                with contextlib.redirect_stderr(io.StringIO()) as stderr:
                    self.result = self.evaluate()
                self.printed = stderr.getvalue()
            finally:
                gc.enable()

    def evaluate(self) -> dict[str, Any]:
        return evaluate("glue", str(self.encoder), str(self.data), self.out, 2, QUICK, "cpu", submission_file=self.zip)


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory, encoder: Path, inference: Path) -> Suite:
    return Suite(tmp_path_factory.mktemp("suite"), encoder, inference)


# ---------------------------------------------------------------- starting from MNLI


def test_suite_rte_starts_from_the_best_mnli_run(suite: Suite) -> None:
    tasks = suite.result["tasks"]
    assert list(tasks) == ["mnli", "rte", "wnli"]
    best = best_run(suite.out / "mnli", EvaluationResult.model_validate(tasks["mnli"]))
    assert tasks["rte"]["protocol"]["intermediate_task"] == "mnli"
    assert tasks["rte"]["intermediate"] == store.fingerprint(best)
    assert "intermediate_task" not in tasks["wnli"]["protocol"]
    assert "intermediate" not in tasks["wnli"]
    assert {tasks[name]["checkpoint"] for name in tasks} == {store.fingerprint(suite.encoder)}
    assert "initial weights a model fine-tuned on MNLI" in " ".join(as_text(suite.result).split())


def test_suite_has_one_model_in_memory_at_a_time(suite: Suite) -> None:
    assert suite.models_created == 2 * 3 + 2  # three tasks with two seeds; WNLI and AX for the zip
    assert suite.most_models_at_once == 1


def test_best_run_of_equal_scores_has_the_lowest_seed() -> None:
    assert best_run(Path("out"), evaluation_result(scores_by_seed={"3": 0.5, "10": 0.7, "4": 0.7})) == Path("out/run-4")


@pytest.mark.parametrize("nproc", [1, 2])
def test_suite_of_a_run_in_training_has_one_checkpoint(
    nproc: int, encoder: Path, inference: Path, tiny_vocabulary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run saves a newer step while the suite trains; with one process, the run may also delete the older step."""
    run = tmp_path / "run"
    step = Path(shutil.copytree(encoder, run / "step-00000010"))
    fingerprint = store.fingerprint(step)

    def evaluate_then_save(*arguments: Any) -> object:
        result = evaluate_task(*arguments)
        replace_steps(run, SHAPE, tiny_vocabulary)
        if nproc > 1 and not step.exists():
            shutil.copytree(encoder, step)
        return result

    monkeypatch.setattr(parallel, "evaluate_task", evaluate_then_save)
    data = str(inference)
    result = evaluate("glue", str(run), data, tmp_path / "out", 1, QUICK, "cpu", nproc=nproc, controlled=["random"])
    assert {task["checkpoint"] for task in result["tasks"].values()} == {fingerprint}
    paths = list((tmp_path / "out").glob("**/run-*/results.json"))
    assert len(paths) == 3 * 2, "of three tasks and their controls"
    assert {store.read_json(path)["checkpoint"] for path in paths} == {fingerprint}


def test_use_intermediate_copies_the_encoder_but_not_the_head(suite: Suite) -> None:
    request = TaskRequest(str(suite.encoder), str(suite.data), 1, QUICK, "cpu")
    mnli_run = suite.out / "mnli" / "run-0"
    model = build_model(use_intermediate(prepare_evaluation("rte", request), mnli_run), 0)
    tensors = hub.read_checkpoint(mnli_run).tensors
    state = model.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in tensors.items() if name.startswith("encoder."))
    assert state["classifier.weight"].shape[0] == 2


def test_eval_intermediate_task_is_trained_once(
    suite: Suite, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ("rte", str(suite.encoder), str(suite.data), tmp_path / "rte", 1, QUICK, "cpu")
    first = evaluate(*arguments)
    assert first["intermediate"] == store.fingerprint(tmp_path / "rte" / "mnli" / "run-0")
    assert "MNLI seed 0 step 6" in capfd.readouterr().err
    assert evaluate(*arguments) == first
    assert "MNLI seed 0 step" not in capfd.readouterr().err


@pytest.mark.parametrize("nproc", [1, 2])
def test_eval_finished_runs_need_no_intermediate_run(nproc: int, suite: Suite, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call = ("rte", str(suite.encoder), str(suite.data), out)
    options: dict[str, Any] = {"nproc": nproc, "controlled": ["random"]}
    first = evaluate(*call, 1, QUICK, "cpu", **options)
    shutil.rmtree(out / "mnli")
    assert evaluate(*call, 1, QUICK, "cpu", **options) == first
    with pytest.raises(ConfigError, match=re.escape(f"{out}/mnli: the model of MNLI is missing, ")) as raised:
        evaluate(*call, 2, QUICK, "cpu", nproc=nproc)
    assert raised.value.hint == f"restore {out}/mnli, or delete {out}/run-0 to train MNLI again"
    assert not (out / "mnli").exists()


def test_finetune_and_search_reuse_runs_without_their_mnli(suite: Suite, tmp_path: Path) -> None:
    options = ["--checkpoint", suite.encoder, "--data", suite.data, "--device", "cpu", "--json"]
    options += [word for override in QUICK for word in ("-s", override)]
    finetune = ["finetune", "rte", *options, "--out", tmp_path / "one"]
    search = ["search", "rte", *options, "--runs", 1, "--out", tmp_path / "searched", "lr=1e-3,2e-3"]
    first = [json.loads(albert(*call).out) for call in (finetune, search)]
    for path in (tmp_path / "one-mnli", tmp_path / "searched" / "intermediate-mnli"):
        shutil.rmtree(path)
    assert [json.loads(albert(*call).out) for call in (finetune, search)] == first
    # A new combination would start from another model than the other two.
    assert "delete" in albert(*search[:-1], "lr=1e-3,2e-3,4e-3", expect=2).err
    assert not list(tmp_path.glob("**/*mnli"))


@pytest.mark.parametrize("nproc", [1, 2])
def test_eval_finished_mnli_run_needs_no_data(nproc: int, suite: Suite, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for task in ("MNLI", "RTE"):
        shutil.copytree(suite.data / task, data / task)
    out = tmp_path / "out"
    call = ("rte", str(suite.encoder), str(data), out)
    evaluate(*call, 1, QUICK, "cpu", nproc=nproc)
    shutil.rmtree(data / "MNLI")
    result = evaluate(*call, 2, QUICK, "cpu", nproc=nproc)
    assert result["intermediate"] == store.fingerprint(out / "mnli" / "run-0") and len(result["seeds"]) == 2
    # The MNLI run has other settings, so the runs start from the checkpoint, and their result is written.
    for run in out.glob("run-*"):
        shutil.rmtree(run)
    result = evaluate(*call, 1, (*QUICK, "optimizer.lr=1e-3"), "cpu", nproc=nproc)
    assert "intermediate" not in result and "MNLI/train.tsv" in result["protocol"]["intermediate_note"]


def test_suite_and_search_reject_foreign_files_first(suite: Suite, tmp_path: Path) -> None:
    for folder in ("suite/rte", "searched/lr=1e-3"):
        write(tmp_path / folder, {"notes": "mine"})
    call = ["--checkpoint", suite.encoder, "--data", suite.data, "--device", "cpu", "--out"]
    assert "holds other files (notes.tsv" in albert("eval", "glue", *call, tmp_path / "suite", expect=6).err
    assert "holds other files" in albert("search", "rte", "lr=1e-3", *call, tmp_path / "searched", expect=6).err
    assert not list(tmp_path.glob("**/run-*"))


def test_eval_mnli_model_needs_no_intermediate_run(suite: Suite, tmp_path: Path) -> None:
    mnli_run = suite.out / "mnli" / "run-1"
    result = evaluate("rte", str(mnli_run), str(suite.data), tmp_path / "out", 1, QUICK, "cpu")
    assert result["checkpoint"] == store.fingerprint(mnli_run)
    assert result["protocol"]["intermediate_task"] == "mnli"
    assert sorted(p.name for p in (tmp_path / "out").glob("[!.]*")) == ["results.json", "run-0"]


def test_build_model_keeps_trained_overlap_heads_and_bias(suite: Suite) -> None:
    """A model of the intermediate task has trained overlap heads; a second initialization would discard them."""
    mnli_run = suite.out / "mnli" / "run-0"
    tensors = hub.read_checkpoint(mnli_run).tensors
    overrides = (*QUICK, "model.overlap_heads=1", "model.classifier_bias=labels")

    def changed_tensors(task: str, *more: str) -> set[str]:
        model = build_model(prepare(task, str(mnli_run), str(suite.data), (*overrides, *more), "cpu"), 0)
        return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, tensors[name])}

    assert not changed_tensors("mnli", "model.head=checkpoint")
    assert changed_tensors("rte") == {"classifier.weight", "classifier.bias"}
    # A new head for the same task starts the recipe again, and without an intermediate task nothing has been trained.
    query = "encoder.attention.0.query.weight"
    assert query in changed_tensors("mnli") and query in changed_tensors("rte", "intermediate_task=pretrained")


def test_eval_without_mnli_data_skips_and_records_it(
    suite: Suite, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rte = (suite.data / "RTE" / "train.tsv").read_text()
    data = write(tmp_path / "data", {"RTE/train": rte, "RTE/dev": rte})
    result = evaluate("glue", str(suite.encoder), str(data), tmp_path / "out", 1, QUICK, "cpu")["tasks"]["rte"]
    protocol = result["protocol"]
    assert "intermediate_task" not in protocol
    assert "MNLI/train.tsv" in protocol["intermediate_note"]
    assert "warning: RTE starts from the checkpoint itself: the recipe starts from MNLI" in capfd.readouterr().err
    explicit = (*QUICK, "intermediate_task=mnli")
    for task in ("rte", "glue"):
        with pytest.raises(InputError, match=r"RTE cannot start from MNLI: .*MNLI/train") as raised:
            evaluate(task, str(suite.encoder), str(data), tmp_path / f"no-{task}", 1, explicit, "cpu")
        assert raised.value.hint == "add MNLI to --data, or skip it with -s intermediate_task=pretrained"


@pytest.mark.parametrize("task", ["rte", "glue"])
def test_eval_runs_started_without_mnli_stop_its_training(suite: Suite, tmp_path: Path, task: str) -> None:
    data = Path(shutil.copytree(suite.data / "RTE", tmp_path / "data" / "RTE")).parent
    out = tmp_path / "out"
    call = (task, str(suite.encoder), str(data), out, 1)
    first = evaluate(*call, QUICK, "cpu")
    shutil.copytree(suite.data / "MNLI", data / "MNLI")
    # A control that is new in the second call must not train its model of MNLI either.
    with pytest.raises(ConfigError, match="run-0: was started without a model of MNLI") as raised:
        evaluate(*call, QUICK, "cpu", controlled=["random"])
    rte_run = out / "rte" / "run-0" if task == "glue" else out / "run-0"
    assert raised.value.hint is not None and raised.value.hint.startswith(f"delete {rte_run}, or ")
    assert not (out / "mnli").exists()
    if task == "rte":
        assert evaluate(*call, (*QUICK, "intermediate_task=pretrained"), "cpu") == first
    shutil.rmtree(rte_run)
    result = evaluate(*call, QUICK, "cpu")
    assert (result["tasks"]["rte"] if task == "glue" else result)["protocol"]["intermediate_task"] == "mnli"


def test_finetune_run_started_without_mnli_stops_its_training(suite: Suite, tmp_path: Path) -> None:
    data = Path(shutil.copytree(suite.data / "RTE", tmp_path / "data" / "RTE")).parent
    out = tmp_path / "a"
    call = ["finetune", "rte", "--checkpoint", suite.encoder, "--data", data, "--device", "cpu", "--out", out]
    call += [word for override in QUICK for word in ("-s", override)]
    albert(*call)
    shutil.copytree(suite.data / "MNLI", data / "MNLI")
    assert f"delete {out}, or " in albert(*call, expect=2).err
    assert not (tmp_path / "a-mnli").exists()


def test_eval_from_the_tasks_folder_skips_mnli(suite: Suite, tmp_path: Path) -> None:
    result = evaluate("rte", str(suite.encoder), str(suite.data / "RTE"), tmp_path / "out", 1, QUICK, "cpu")
    assert "is not MNLI's file" in result["protocol"]["intermediate_note"]


def test_suite_from_a_tasks_folder_is_rejected(suite: Suite, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is the folder of a single task") as raised:
        evaluate("glue", str(suite.encoder), str(suite.data / "RTE"), tmp_path / "out", 1, QUICK, "cpu")
    assert raised.value.hint is not None and str(suite.data) in raised.value.hint


def test_control_starts_from_a_separate_intermediate_run(suite: Suite, tmp_path: Path) -> None:
    overrides = (*QUICK, "train.seed=7")
    evaluate("rte", str(suite.encoder), str(suite.data), tmp_path, 1, overrides, "cpu", controlled=["random"])
    pretrained = store.read_json(tmp_path / "run-7" / "results.json")
    control = store.read_json(tmp_path / "controls" / "random" / "run-7" / "results.json")
    pretrained_mnli = tmp_path / "mnli" / "run-7"
    control_mnli = tmp_path / "mnli" / "controls" / "random" / "run-7"
    assert pretrained["intermediate"] == store.fingerprint(pretrained_mnli)
    assert control["intermediate"] == store.fingerprint(control_mnli)
    assert pretrained["intermediate"] != control["intermediate"]
    for result in (control, store.read_json(control_mnli / "results.json")):
        assert result["protocol"]["weights"] == "random"


def test_intermediate_recipe_is_from_the_same_folder(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[PreparedTask] = []
    monkeypatch.setattr(intermediate, "finetune", lambda prepared, *_, **__: trained.append(prepared))
    monkeypatch.setattr(intermediate, "use_intermediate", lambda prepared, *_: prepared)
    request = TaskRequest(str(suite.encoder), str(suite.data), 1, ("intermediate_task=mnli",), "cpu")
    copy, child, standalone = (str(tmp_path / f"{name}.toml") for name in ("mine", "child", "standalone"))
    albert("recipes", "copy", "mini/rte", "--out", copy)
    Path(child).write_text('extends = "mine.toml"\n[optimizer]\nlr = 1e-3\n')
    Path(standalone).write_text('task = "rte"\n')
    recipes = [("mini/rte", "mini"), ("rte", "finetune"), (copy, "mini"), (child, "mini"), (standalone, "finetune")]
    for name, folder in recipes:
        add_intermediate(prepare_task(name, request), tmp_path, [])
        assert trained[-1].recipe.optimizer == load_recipe("mnli", (), folder).optimizer


def test_control_of_an_mnli_model_trains_mnli_first(suite: Suite, tmp_path: Path) -> None:
    mnli_run = suite.out / "mnli" / "run-0"
    evaluate("rte", str(mnli_run), str(suite.data), tmp_path, 1, QUICK, "cpu", controlled=["random"])
    control = store.read_json(tmp_path / "controls" / "random" / "run-0" / "results.json")
    assert control["intermediate"] == store.fingerprint(tmp_path / "mnli" / "controls" / "random" / "run-0")
    assert "intermediate" not in store.read_json(tmp_path / "run-0" / "results.json")


def test_missing_intermediate_classes_without_names_need_it(suite: Suite, tmp_path: Path) -> None:
    model = Path(shutil.copytree(suite.out / "mnli" / "run-0", tmp_path / "model"))
    (model / "manifest.json").unlink()
    values = store.read_json(model / "config.json")
    written_by_albert = ("id2label", "label2id", "finetuning_task", "albert_task")
    store.write_json(model / "config.json", {key: values[key] for key in values if key not in written_by_albert})
    request = TaskRequest(str(model), str(suite.data), 1, QUICK, "cpu")
    assert hub.read_checkpoint(model).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert missing_intermediate(prepare_task("rte", request)) == "mnli"
    named = replace(request, overrides=(*QUICK, f"model.labels={list(find_task('mnli').labels)}"))
    assert missing_intermediate(prepare_task("rte", named)) is None


def test_finetune_with_the_checkpoints_head_needs_no_mnli(suite: Suite, tmp_path: Path) -> None:
    rte_run = suite.out / "rte" / "run-0"
    prepared = prepare("rte", str(rte_run), str(suite.data), (*QUICK, "model.head=checkpoint"), "cpu")
    assert missing_intermediate(prepared) is None
    result = finetune(prepared, tmp_path / "out")
    assert result["protocol"]["intermediate_task"] == "rte" and "intermediate" not in result


@pytest.mark.parametrize(
    "overrides",
    [
        ("data.both_orders=true", "data.train_examples=3", "data.dev_examples=2"),
        ("data={both_orders=true, train_examples=3}", "data . dev_examples = 2"),
    ],
)
def test_intermediate_task_has_all_examples_in_one_order(
    overrides: tuple[str, ...], suite: Suite, tmp_path: Path
) -> None:
    prepared = prepare("rte", str(suite.encoder), str(suite.data), (*QUICK, *overrides), "cpu")
    add_intermediate(prepared, tmp_path, [])
    result = store.read_json(tmp_path / "run-0" / "results.json")
    assert result["examples"] == {"train": 24, "dev_matched": 9, "dev_mismatched": 15}
    assert not result["protocol"]["both_orders"]


def test_intermediate_task_has_the_recipes_encoder(suite: Suite, tmp_path: Path) -> None:
    recipe = tmp_path / "rte.toml"
    recipe.write_text(
        'extends = "finetune/rte"\n[model]\nmax_position_embeddings = 64\nweights = "random"\noverlap_heads = 1\n'
    )
    prepared = prepare(str(recipe), str(suite.encoder), str(suite.data), QUICK, "cpu")
    prepared = add_intermediate(prepared, tmp_path / "mnli", [])
    assert prepared.intermediate is not None
    model = load_recipe(str(prepared.intermediate.directory / "recipe.toml"), ()).model
    assert (model.weights, model.overlap_heads) == ("random", 1)
    table_PE = build_model(prepared, 0).encoder.embeddings.position.weight
    assert torch.equal(table_PE[48:], table_PE[:16]), "MNLI's 48 positions are tiled"


def test_intermediate_task_unknown_is_rejected(suite: Suite, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="intermediate_task = 'ax': no such task"):
        evaluate("rte", str(suite.encoder), str(suite.data), tmp_path / "out", 1, ("intermediate_task=ax",), "cpu")


def test_finetune_writes_intermediate_run_next_to_out(
    suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["finetune", "rte", "--checkpoint", suite.encoder, "--data", suite.data, "--device", "cpu"]
    call += [word for override in QUICK for word in ("-s", override)]
    result = albert(*call, "--out", tmp_path / "one", "--json")
    assert json.loads(result.out)["intermediate"] == store.fingerprint(tmp_path / "one-mnli" / "run-0")
    without_intermediate = albert(*call, "--out", tmp_path / "other", "--json", "-s", "intermediate_task=pretrained")
    assert "intermediate" not in json.loads(without_intermediate.out)
    assert not (tmp_path / "other-mnli").exists()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    albert(*call, "--out", ".")
    assert (tmp_path / "here" / "results.json").is_file()
    assert (tmp_path / "here-mnli" / "run-0").is_dir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("x")
    albert(*call, "--out", tmp_path / "full", expect=6)
    assert not (tmp_path / "full-mnli").exists()


# ---------------------------------------------------------------- damaged data is an error, not missing data


def damage_data(suite: Suite, folder: Path, name: str) -> Path:
    """Copy the suite's data, and append an incomplete line to one file."""
    files = {str(p.relative_to(suite.data).with_suffix("")): p.read_text() for p in suite.data.rglob("*.tsv")}
    return write(folder / "data", files | {name: files.get(name, "index\n") + "cut\n"})


@pytest.mark.parametrize("task", ["rte", "glue"])
@pytest.mark.parametrize("name", ["MNLI/train", "RTE/train", "RTE/dev"])
def test_eval_damaged_data_stops_before_training(suite: Suite, tmp_path: Path, task: str, name: str) -> None:
    data = damage_data(suite, tmp_path, name)
    with pytest.raises(InputError, match=rf"{name}\.tsv:\d+: 1 field instead"):
        evaluate(task, str(suite.encoder), str(data), tmp_path / "out", 1, QUICK, "cpu")
    assert not list(tmp_path.glob("out/**/*.safetensors"))


def test_submission_damaged_test_set_is_an_error(suite: Suite, tmp_path: Path) -> None:
    data = damage_data(suite, tmp_path, "WNLI/test")
    call = ("glue", str(suite.encoder), str(data), tmp_path / "out", 1, QUICK, "cpu")
    with pytest.raises(InputError, match=r"WNLI/test\.tsv:148: 1 field "):
        evaluate(*call, submission_file=tmp_path / "it.zip")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data"]


def test_suite_damaged_diagnostics_stop_before_training(suite: Suite, tmp_path: Path) -> None:
    data = damage_data(suite, tmp_path, "diagnostic/diagnostic")
    with pytest.raises(InputError, match=r"diagnostic\.tsv:1106: 1 field instead of 3"):
        evaluate("glue", str(suite.encoder), str(data), tmp_path / "out", 1, QUICK, "cpu")
    assert not (tmp_path / "out").exists()


def test_eval_ax_damaged_labels_are_an_error(suite: Suite, tmp_path: Path) -> None:
    data = damage_data(suite, tmp_path, "diagnostic/diagnostic-full")
    model = suite.out / "mnli" / "run-0"
    with pytest.raises(InputError, match=r"diagnostic-full\.tsv: no column 'Premise'"):
        evaluate("ax", str(model), str(data), tmp_path / "out", 1, (), "cpu")


# ---------------------------------------------------------------- the diagnostics


def test_eval_ax_needs_a_model_of_mnli(suite: Suite, tmp_path: Path) -> None:
    assert "diagnostics" not in suite.result
    assert re.search("AX is left out: .*diagnostic-full", suite.printed)
    with pytest.raises(InputError, match="diagnostic-full"):
        evaluate("ax", str(suite.out / "mnli" / "run-0"), str(suite.data), tmp_path / "out", 1, (), "cpu")
    with pytest.raises(InputError, match="AX has no training data; models fine-tuned on MNLI answer it"):
        evaluate("ax", str(suite.encoder), str(suite.data), tmp_path / "out", 1, (), "cpu")


@pytest.mark.parametrize("override", ["model.head=new", "model.weights=random"])
def test_scoring_request_drops_training_overrides(suite: Suite, override: str) -> None:
    request = TaskRequest(str(suite.encoder), str(suite.data), 2, (*QUICK, override), "cpu")
    assert not prepare_evaluation("ax", scoring_request(request, str(suite.out / "mnli" / "run-0"))).needs_training


def labeled_diagnostics() -> str:
    """Return the content of the labeled file of GLUE's diagnostics, with 12 rows."""
    header = "\t".join([*"12345", "Premise", "Hypothesis", "Label"])
    rows = [f"\t\t\t\t\tbade {i}\tfigo wi\t{find_task('ax').labels[i % 3]}\n" for i in range(12)]
    return f"{header}\n{''.join(rows)}"


def test_suite_scores_ax_again_if_another_run_is_best(encoder: Path, tmp_path: Path) -> None:
    files = {"MNLI/train": mnli(range(24)), "MNLI/dev_matched": mnli(range(9)), "MNLI/dev_mismatched": mnli(range(9))}
    data = write(tmp_path / "data", {**files, "diagnostic/diagnostic-full": labeled_diagnostics()})
    out = tmp_path / "out"
    first = evaluate("glue", str(encoder), str(data), out, 1, QUICK, "cpu")
    assert first["diagnostics"]["checkpoint"] == store.fingerprint(out / "mnli" / "run-0")
    evaluate("mnli", str(encoder), str(data), out / "mnli", 2, QUICK, "cpu")
    path = out / "mnli" / "run-1" / "results.json"
    record = store.read_json(path)
    store.write_json(path, record | {"score": 1.0, "scores": record["scores"] | {"accuracy": 1.0}})
    second = evaluate("glue", str(encoder), str(data), out, 2, QUICK, "cpu")
    assert second["diagnostics"]["checkpoint"] == store.fingerprint(out / "mnli" / "run-1")


def test_suite_schedule_shorter_than_warmup_stops_early(suite: Suite, tmp_path: Path) -> None:
    """MNLI has 6 steps per epoch, RTE and WNLI have 3."""
    schedule = ("schedule.epochs=1", "schedule.warmup_steps=4")
    overrides = (*(override for override in QUICK if not override.startswith("schedule.")), *schedule)
    with pytest.raises(ConfigError, match="warmup"):
        evaluate("glue", str(suite.encoder), str(suite.data), tmp_path / "out", 1, overrides, "cpu")
    assert not (tmp_path / "out").exists()


def test_eval_ax_with_labels_is_scored(suite: Suite, tmp_path: Path) -> None:
    data = write(tmp_path / "data", {"diagnostic/diagnostic-full": labeled_diagnostics()})
    model = suite.out / "mnli" / "run-0"
    result = evaluate("ax", str(model), str(data), tmp_path / "out", 1, (), "cpu")
    assert (result["kind"], result["metric"], result["examples"]) == ("scored", "mcc", {"dev": 12})
    assert -1 <= result["score"] <= 1


# ---------------------------------------------------------------- the submission

# Tasks with the labels of a file, if not those of CoLA; STS-B has values instead.
LABELS = {"STS-B": None, "MNLI-m": "ax", "MNLI-mm": "ax", "AX": "ax", "QNLI": "rte", "RTE": "rte"}


def test_submission_zip_contains_the_eleven_files(suite: Suite) -> None:
    names = {"CoLA", "SST-2", "MRPC", "STS-B", "MNLI-m", "MNLI-mm", "QNLI", "QQP", "RTE", "WNLI", "AX"}
    with zipfile.ZipFile(suite.zip) as archive:
        assert {name.removesuffix(".tsv") for name in archive.namelist()} == names
        assert len(archive.namelist()) == 11
        for file in submission.SERVER_FILES:
            content = archive.read(file.name).decode()
            assert content.startswith("index\tprediction\n")
            assert content.count("\n") == 1 + file.rows
            cells = content.split()
            assert cells[2::2] == [str(i) for i in range(file.rows)]
            task = LABELS.get(file.name.removesuffix(".tsv"), "cola")
            predictions = set(cells[3::2])
            if task is None:
                assert all(0 <= float(value) <= 5 for value in predictions)
            else:
                assert predictions <= set(find_task(task).labels)


def test_submission_is_predicted_by_the_best_runs(suite: Suite) -> None:
    best = {
        task: best_run(suite.out / task, EvaluationResult.model_validate(suite.result["tasks"][task]))
        for task in ("mnli", "wnli")
    }
    run_of_file = dict(re.findall(r"^(\S+\.tsv): [\d,]+ rows predicted by (.*)$", suite.printed, re.MULTILINE))
    assert run_of_file == {"AX.tsv": str(best["mnli"]), "WNLI.tsv": str(best["wnli"])}
    assert "9 of 11 files have the same placeholder in all rows" in suite.printed
    assert "CoLA.tsv (1: no test set)" in suite.printed
    assert "RTE.tsv (entailment: no test set)" in suite.printed
    prepared = prepare_evaluation("ax", TaskRequest(str(best["mnli"]), str(suite.data), 1, (), "cpu"))
    examples = prepared.task.read("test", str(suite.data))
    outputs = predict_examples(prepared, examples)
    lines = prepared.task.format_predictions(examples, outputs, with_details=False)
    with zipfile.ZipFile(suite.zip) as archive:
        rows = archive.read("AX.tsv").decode().splitlines()[1:]
    assert rows == [f"{row['id']}\t{row['prediction']}" for row in map(json.loads, lines)]


def test_submission_of_the_same_results_has_the_same_bytes(suite: Suite) -> None:
    content = suite.zip.read_bytes()
    result = json.dumps(suite.result)
    assert json.dumps(suite.evaluate()) == result
    assert suite.zip.read_bytes() == content


def test_format_labels_clips_values_and_names_classes() -> None:
    values = np.array([[-1.0], [2.34567], [9.0]])
    assert submission.format_labels(GLUE["stsb"], values) == ["0.000", "2.346", "5.000"]
    assert submission.format_labels(GLUE["rte"], np.eye(2)) == ["entailment", "not_entailment"]
    assert submission.format_labels(GLUE["cola"], np.eye(2)) == ["0", "1"]


def test_submission_wrong_test_set_stops_before_training(suite: Suite, tmp_path: Path) -> None:
    rows = (suite.data / "WNLI" / "test.tsv").read_text().splitlines(keepends=True)
    data = write(tmp_path / "data", {"WNLI/test": "".join(rows[:-1])})
    call = ("glue", str(suite.encoder), str(data), tmp_path / "out", 1, QUICK, "cpu")
    with pytest.raises(InputError, match="WNLI: the test set has 145 examples, GLUE's has 146"):
        evaluate(*call, submission_file=tmp_path / "it.zip")
    rows[-1] = "=1+1" + rows[-1][rows[-1].index("\t") :]
    write(data, {"WNLI/test": "".join(rows)})
    with pytest.raises(InputError, match=re.escape("WNLI: the test set has an id that a spreadsheet would run: =1+1")):
        evaluate(*call, submission_file=tmp_path / "it.zip")
    with pytest.raises(ConfigError, match="is not the name of a zip"):
        evaluate(*call, submission_file=tmp_path / "it.tsv")
    options = ["--checkpoint", suite.encoder, "--data", data, "--out", tmp_path / "out", "--submission"]
    assert "rte needs a .tsv (RTE.tsv)" in albert("eval", "rte", *options, "it.zip", expect=2).err
    assert "mnli needs a .zip (MNLI-m.tsv and MNLI-mm.tsv)" in albert("eval", "mnli", *options, "it.tsv", expect=2).err
    assert "squad1 is not a task of GLUE" in albert("eval", "squad1", *options, "it.tsv", expect=2).err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data"]


def test_eval_submission_of_one_task_equals_its_file_in_the_zip(suite: Suite, tmp_path: Path) -> None:
    best = best_run(suite.out / "wnli", EvaluationResult.model_validate(suite.result["tasks"]["wnli"]))
    options = ["--checkpoint", best, "--data", suite.data, "--device", "cpu"]
    albert("eval", "wnli", *options, "--out", tmp_path / "out", "--submission", tmp_path / "WNLI.tsv")
    with zipfile.ZipFile(suite.zip) as archive:
        assert (tmp_path / "WNLI.tsv").read_bytes() == archive.read("WNLI.tsv")
    runs = [suite.out / "wnli" / f"run-{seed}" for seed in (0, 1)]
    call = ["--data", suite.data, "--device", "cpu", "--out", tmp_path / "both"]
    albert("ensemble", "wnli", *runs, *call, "--submission", tmp_path / "both.tsv")
    chosen = json.loads((tmp_path / "both" / "results.json").read_text())["chosen"]
    assert (tmp_path / "both.tsv").read_text().count("\n") == 147
    assert len(chosen) > 1 or (tmp_path / "both.tsv").read_bytes() == (tmp_path / "WNLI.tsv").read_bytes()
