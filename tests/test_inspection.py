"""Tests of `albert_cli.inspection`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from albert_cli import store
from albert_cli.data.records import BuildSettings
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.inspection import inspect_directory
from tests.helpers.data_directories import build


def test_inspect_data_shows_sizes_and_examples(tiny_data: Path) -> None:
    inspection = inspect_directory(tiny_data, examples=3, step=2, seed=1)
    facts = json.loads(json.dumps(inspection.to_json()))
    text = inspection.format()
    assert facts["kind"] == "data"
    assert [example["index"] for example in facts["examples"]] == [64, 65, 66]
    assert "from step 2, 32 sequences a step, seed 1:" in text
    assert text.count("example ") == 3
    assert "  A: " in text
    assert "[" in text.split("example", 1)[1], "masked words are in brackets"
    assert "\x1b" not in text, "colors are only for terminals"
    train = facts["totals"]["train"]
    assert facts["lengths_by_unit"]["document"]["mean"] == pytest.approx(train["tokens"] / train["documents"], 0.01)


def test_inspect_data_without_examples_has_no_step(tiny_data: Path) -> None:
    facts = inspect_directory(tiny_data).to_json()
    assert "sample" in facts
    assert not facts.keys() & {"examples", "step", "seed", "batch_size"}


@pytest.mark.parametrize(("recipe", "batch_size"), [("continue", 256), ("albert-base", 4096)])
def test_inspect_data_takes_examples_of_any_recipe(recipe: str, batch_size: int, tiny_data: Path) -> None:
    facts = inspect_directory(tiny_data, examples=2, step=1, recipe=recipe).to_json()
    assert facts["seed"] == 12345, "the seed of both recipes"
    assert facts["batch_size"] == batch_size


def test_inspect_data_rejects_a_fine_tuning_recipe(tiny_data: Path) -> None:
    with pytest.raises(ConfigError, match="is a fine-tuning recipe, for rte"):
        inspect_directory(tiny_data, examples=1, recipe="finetune/rte")


def test_inspect_weighted_data_has_bytes_per_token_of_text(tiny_vocabulary: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Kra bade wi luma {number}. Ste nepi roro." for number in range(60)))
    once = build([str(text)], tiny_vocabulary, tmp_path / "once", BuildSettings(holdout=0.1)).facts
    build([f"{text}@5"], tiny_vocabulary, tmp_path / "more", BuildSettings(holdout=0.1))
    shown = f"{once.bytes_read / once.tokens_read:.2f} bytes per token"
    for name in ("once", "more"):
        assert shown in inspect_directory(tmp_path / name).format()


def test_inspect_vocabulary_shows_its_size(tiny_vocabulary: Path) -> None:
    inspection = inspect_directory(tiny_vocabulary)
    assert inspection.to_json()["size"] == 300
    assert "ordinary_tokens" in inspection.format()


def test_inspect_verify_counts_files_and_reports_damage(tiny_data: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    inspection = inspect_directory(data, verify=True)
    assert inspection.verified is not None
    assert inspection.verified > 10
    assert f"verified: {inspection.verified} files" in inspection.format()
    path, *_ = sorted(data.glob("shards/*/train-00.ids"))
    content = bytearray(path.read_bytes())
    content[7] ^= 4
    path.chmod(0o644)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"train-00\.ids"):
        inspect_directory(data, verify=True)


def test_inspect_run_shows_its_last_metrics(tmp_path: Path) -> None:
    records = [
        {"step": 1, "loss": 2.5},
        {"step": 2, "loss": 2.0},
        {"step": 2, "eval": {"mlm_loss": 5}},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with store.commit_directory(tmp_path / "step-00000002", "checkpoint") as staging:
        (staging / "config.json").write_text('{"model_type": "albert", "hidden_size": 64}')
    inspection = inspect_directory(tmp_path)
    assert inspection.kind == "run"
    assert inspection.content["checkpoints"] == ["step-00000002"]
    assert inspection.content["last_training"] == {"step": 2, "loss": 2.0}
    assert "mlm_loss" in inspection.format()
    assert inspect_directory(tmp_path / "step-00000002").content["model"] == {"model_type": "albert", "hidden_size": 64}
    assert inspect_directory(tmp_path, verify=True).verified == 1


def test_inspect_run_that_stopped_before_its_first_step(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("[train]\nseed = 0\n")
    store.write_json(tmp_path / "status.json", {"state": "diverged", "exit_code": 5})
    inspection = inspect_directory(tmp_path)
    assert inspection.kind == "run"
    assert "diverged" in inspection.format()


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"kind": "suite", "tasks": {}, "tasks_scored": 1, "mean_of_tasks": 61.5}, "61.5"),
        ({"kind": "search", "points": [], "best": {"median": 0.55, "values": {"lr": "1e-3"}}}, "0.55"),
        ({"kind": "verify", "average": {"published": 80.0, "measured": 79.5}, "reached": True}, "79.5"),
    ],
)
def test_inspect_shows_the_score_of_every_result(result: dict[str, object], shown: str, tmp_path: Path) -> None:
    store.write_json(tmp_path / "results.json", result)
    assert shown in inspect_directory(tmp_path).format()


def test_inspect_leaves_out_results_without_known_keys(tmp_path: Path) -> None:
    store.write_json(tmp_path / "results.json", {"kind": "other"})
    assert "results" not in inspect_directory(tmp_path).content


def test_inspect_rejects_anything_else(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not written by albert"):
        inspect_directory(tmp_path)
    with pytest.raises(CheckpointError, match="no such directory"):
        inspect_directory(tmp_path / "missing")
    (tmp_path / "a.txt").write_text("Words.\n")
    with pytest.raises(CheckpointError, match=r"a\.txt: is a file"):
        inspect_directory(tmp_path / "a.txt")


def test_inspect_folder_named_like_a_checkpoint_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "step-by-step").mkdir()
    with pytest.raises(CheckpointError, match="not written by albert"):
        inspect_directory(tmp_path)
    store.write_json(tmp_path / "results.json", {"kind": "other"})
    assert inspect_directory(tmp_path).kind == "evaluation", "any results.json makes an evaluation"


def test_inspect_verify_includes_linked_checkpoints(finished: Path, tmp_path: Path) -> None:
    step = Path(shutil.copytree(finished / "step-00000030", tmp_path / "scratch" / "step-00000030"))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / step.name).symlink_to(step)
    assert inspect_directory(tmp_path / "run", verify=True).verified
    weights = step / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3] + b"abc")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        inspect_directory(tmp_path / "run", verify=True)


def test_inspect_verify_reports_a_broken_checkpoint_link(finished: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    (run / "step-00000040").symlink_to("/nowhere/step-00000040")
    with pytest.raises(CheckpointError, match="step-00000040: is a broken link"):
        inspect_directory(run, verify=True)


def test_inspect_verify_ignores_a_link_to_itself(tiny_data: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(tiny_data, tmp_path / "data"))
    (data / "stray").symlink_to("stray")
    assert inspect_directory(data, verify=True).verified


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        (".work.json", "unfinished evaluation or search"),
        (".work-sizes-mini.json", "unfinished experiments"),
        ("stages/data-1.json", "experiments"),
    ],
)
def test_inspect_names_the_output_of_several_runs(file: str, kind: str, tmp_path: Path) -> None:
    store.write_json(tmp_path / file, {})
    assert inspect_directory(tmp_path).kind == kind
    assert inspect_directory(tmp_path).format().startswith(f"{tmp_path}: {kind}")


def test_inspect_report_of_an_experiment_is_no_evaluation(tmp_path: Path) -> None:
    store.write_json(tmp_path / "results.json", {"kind": "experiment", "experiment": "sizes", "scale": "mini"})
    inspection = inspect_directory(tmp_path)
    assert inspection.kind == "experiment"
    assert "sizes" in inspection.format() and "mini" in inspection.format()
