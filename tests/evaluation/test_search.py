"""Tests of `albert search`, which evaluates all combinations of lists of values."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from albert_cli import store
from albert_cli.errors import ConfigError
from albert_cli.evaluation.search import parse_grid, search_grid
from albert_cli.training.task_setup import TaskRequest
from tests.helpers.command import albert
from tests.helpers.task_runs import QUICK, diverge_random_mnli


def test_parse_grid_last_list_changes_fastest() -> None:
    assert parse_grid(["lr=1e-5,2e-5", "batch=16,32"]) == [
        {"lr": lr, "batch": batch} for lr in ("1e-5", "2e-5") for batch in ("16", "32")
    ]
    assert parse_grid(["optimizer.eps=1e-6"]) == [{"optimizer.eps": "1e-6"}]
    assert len(parse_grid(["lr=1,1,2"])) == 2
    assert parse_grid(["optimizer.lr=1"]) == parse_grid(["lr=1"])


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        (["lr"], "expected KEY=VALUE"),
        (["lr="], "expected KEY=VALUE"),
        (["lr=1e-5,,2e-5"], "expected KEY=VALUE"),
        (["rl=1"], "unknown key 'rl'"),
        (["lr=1", "lr=2"], "lr is listed twice"),
        (["lr=1", "optimizer.lr=2"], "lr is listed twice"),
        (["steps=10", "epochs=1"], "steps and epochs set the same thing"),
        (["schedule.warmup_ratio=0.1", "warmup=5"], "schedule.warmup_ratio and warmup set the same thing"),
        (["data.name=a/b"], "must not contain /"),
    ],
)
def test_parse_grid_wrong_lists_are_rejected(lists: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_grid(lists)


def test_search_prints_budget_first_and_best_last(encoder: Path, glue: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call = ["--checkpoint", encoder, "--data", glue, "--device", "cpu", "--runs", 1, "--out", out]
    call += [word for override in QUICK for word in ("-s", override)]
    printed = albert("search", "cola", "lr=1e-3,5e-3", "batch=2,4", *call)
    first = printed.err.index("4 combinations, 1 seed each: 4 runs, 24 steps (finished runs are counted")
    assert first < printed.err.index("CoLA seed 0 step")
    assert "The best combination was selected on dev" in printed.out
    result = json.loads((out / "results.json").read_text())
    assert [p["values"] for p in result["points"]][1] == {"lr": "1e-3", "batch": "4"}
    assert result["best"]["median"] == max(p["median"] for p in result["points"])
    for point in result["points"]:
        saved_recipe = (out / point["directory"] / "run-0" / "recipe.toml").read_text()
        assert f"batch_size = {point['values']['batch']}\n" in saved_recipe
    repeated = albert("search", "cola", "lr=1e-3,5e-3", *call, "batch=2,4")
    assert repeated.out == printed.out
    assert "CoLA seed 0 step" not in repeated.err


def test_search_majority_is_that_of_the_best(encoder: Path, glue: Path, tmp_path: Path) -> None:
    """Combinations with other values of `data.train_examples` may differ in their majority class."""
    out = tmp_path / "out"
    call = ["search", "cola", "lr=1e-3,5e-3", "--checkpoint", encoder, "--data", glue, "--device", "cpu"]
    call += ["--runs", 1, "--out", out, *(word for override in QUICK for word in ("-s", override))]
    albert(*call)
    path = out / "lr=5e-3" / "run-0" / "results.json"
    record = store.read_json(path)
    store.write_json(path, record | {"score": 1.0, "scores": record["scores"] | {"mcc": 1.0}, "majority": 0.25})
    albert(*call)
    result = store.read_json(out / "results.json")
    assert (result["best"]["values"], result["majority"]) == ({"lr": "5e-3"}, 0.25)


def test_search_of_a_value_with_brackets_is_repeated(encoder: Path, tmp_path: Path) -> None:
    rows = "".join(f"bade figo {i},{i % 2}\n" for i in range(12))
    data = tmp_path / "all.csv"
    data.write_text("body [en],label\n" + rows)
    call = ["table", "table.text=body [en]", "--checkpoint", encoder, "--data", data, "--device", "cpu"]
    call += ["--runs", 1, "--out", tmp_path / "out", *(word for override in QUICK for word in ("-s", override))]
    first = albert("search", *call)
    assert albert("search", *call).out == first.out


def test_search_trains_intermediate_task_once(encoder: Path, inference: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call = ["--checkpoint", encoder, "--data", inference, "--device", "cpu", "--runs", 1, "--out", out]
    call += [word for override in QUICK for word in ("-s", override)]
    printed = albert("search", "rte", "intermediate=mnli,pretrained", "batch=4,8", *call)
    first = printed.err.index("4 combinations, 1 seed each: 4 runs, ")
    assert printed.err.count("RTE starts from MNLI") == 1, "once for all combinations"
    assert first < printed.err.index("MNLI seed 0 step")
    points = json.loads((out / "results.json").read_text())["points"]
    intermediates = [
        json.loads((out / p["directory"] / "results.json").read_text()).get("intermediate") for p in points
    ]
    assert intermediates == [store.fingerprint(out / "intermediate-mnli" / "run-0")] * 2 + [None] * 2


def test_search_runs_started_without_mnli_stop_its_training(encoder: Path, inference: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(inference / "RTE", tmp_path / "data" / "RTE")).parent
    out = tmp_path / "out"
    request = TaskRequest(str(encoder), str(data), 1, QUICK, "cpu", baselines=False)
    search_grid("rte", request, ["batch=8"], out)
    shutil.copytree(inference / "MNLI", data / "MNLI")
    with pytest.raises(ConfigError, match="was started without a model of MNLI") as raised:
        search_grid("rte", request, ["batch=4,8"], out)
    assert raised.value.hint is not None and f"delete {out / 'batch=8' / 'run-0'}, or " in raised.value.hint
    assert not (out / "intermediate-mnli").exists()


def test_search_without_mnli_is_repeated(encoder: Path, inference: Path, tmp_path: Path) -> None:
    """MNLI's recipe has 1,000 steps of warmup, more than the searched steps, which are only for RTE."""
    data = Path(shutil.copytree(inference / "RTE", tmp_path / "data" / "RTE")).parent
    recipe = tmp_path / "rte.toml"
    recipe.write_text('extends = "finetune/rte"\n[schedule]\nwarmup_steps = 1\n')
    overrides = tuple(override for override in QUICK if not override.startswith("schedule."))
    request = TaskRequest(str(encoder), str(data), 1, overrides, "cpu", baselines=False)
    first = search_grid(str(recipe), request, ["steps=6"], tmp_path / "out")
    assert search_grid(str(recipe), request, ["steps=6"], tmp_path / "out") == first


def test_search_trains_intermediate_per_initial_encoder(encoder: Path, inference: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    call = ["--checkpoint", encoder, "--data", inference, "--device", "cpu", "--runs", 1, "--out", out]
    call += [word for override in (*QUICK, "train.seed=7") for word in ("-s", override)]
    weights = ("pretrained", "random")
    lists = [f"model.weights={','.join(weights)}", "model.max_position_embeddings=64,48"]
    printed = albert("search", "rte", *lists, *call)
    assert printed.err.count("RTE starts from MNLI") == 2, "once for each initial encoder"
    fingerprints = {}
    for value in weights:
        run = out / f"intermediate-mnli,model.weights={value}" / "run-7"
        assert store.read_json(run / "results.json")["protocol"]["weights"] == value
        fingerprints[value] = store.fingerprint(run)
    assert fingerprints["pretrained"] != fingerprints["random"]
    for point in json.loads((out / "results.json").read_text())["points"]:
        result = json.loads((out / point["directory"] / "results.json").read_text())
        assert result["intermediate"] == fingerprints[point["values"]["model.weights"]]


def test_search_continues_after_a_diverged_intermediate_run(
    encoder: Path, inference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge_random_mnli(monkeypatch)
    out = tmp_path / "out"
    call = ["search", "rte", "model.weights=random,pretrained", "--checkpoint", encoder, "--data", inference]
    call += ["--device", "cpu", "--runs", 2, "--out", out, *(word for override in QUICK for word in ("-s", override))]
    albert(*call)
    random, pretrained = store.read_json(out / "results.json")["points"]
    assert "median" not in random and list(random["diverged"]) == ["0", "1"]
    assert pretrained["diverged"] == {} and len(pretrained["scores_by_seed"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cola", "x=1"), "unknown key 'x'"),
        (("cola", "lr=1", "--nproc", 0), "greater than or equal to 1"),
        (("glue", "lr=1,2"), "a search needs one task"),
    ],
)
def test_search_wrong_arguments_are_rejected(
    encoder: Path, glue: Path, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    call = ["search", *arguments, "--checkpoint", encoder, "--data", glue, "--out", tmp_path / "out"]
    assert message in albert(*call, expect=2).err
    assert "--checkpoint is missing" in albert("eval", "cola", "--out", tmp_path / "out", expect=2).err
    assert not (tmp_path / "out").exists()


def test_search_rejects_a_model_that_is_already_fine_tuned(tuned: object, glue: Path, tmp_path: Path) -> None:
    model = tuned("cola")  # type: ignore[operator]
    call = ["search", "cola", "lr=1,2", "--checkpoint", model, "--data", glue, "--out", tmp_path / "out"]
    assert "is already fine-tuned for CoLA" in albert(*call, expect=2).err
