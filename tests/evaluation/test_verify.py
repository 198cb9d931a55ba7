"""Tests of recipes that verify published scores, with a local checkpoint and invented scores."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from albert_cli import config, store
from albert_cli.errors import BusyError, CheckpointError, ConfigError, InputError, ScoreNotReachedError, Skipped
from albert_cli.evaluation import verify
from albert_cli.evaluation.tables import format_result
from albert_cli.evaluation.verify import VerifyRecipe
from albert_cli.model.config import ModelConfig
from albert_cli.results import VerifyResult
from albert_cli.tasks.published import load_published_scores
from albert_cli.training.task_setup import TaskRequest
from tests.helpers.checkpoints import untrained
from tests.helpers.command import albert
from tests.helpers.results import evaluation_result
from tests.helpers.task_runs import diverge_runs

SHAPE = ModelConfig(
    vocab_size=300, embedding_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=24,
)  # fmt: skip
QUICK = [
    "schedule.total_steps=2", "schedule.warmup_steps=1", "train.batch_size=4", "train.eval_every=2",
    "train.precision=fp32",
]  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tiny_vocabulary: Path) -> Path:
    return untrained(tmp_path_factory.mktemp("verify") / "stand-in", SHAPE, tiny_vocabulary)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write SST-2, with one class only, in the folder `glue` of several benchmarks."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "glue" / "SST-2").mkdir(parents=True)
    for split in ("train", "dev"):
        lines = ["sentence\tlabel", *(f"bade figo {i}\t1" for i in range(6))]
        (folder / "glue" / "SST-2" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def write_recipe(path: Path, checkpoint: Path | str, tolerance: float = 1.0, **scores: float) -> str:
    """Write a recipe with these expected accuracies; return its path."""
    lines = [f'checkpoint = "{checkpoint}"', 'source = "here"', f"tolerance = {tolerance}", f"overrides = {QUICK}"]
    lines += ["[expected]", *(f"{task}.accuracy = {score}" for task, score in scores.items())]
    path.write_text("\n".join(lines).replace("'", '"') + "\n")
    return str(path)


def verify_scores(file: str, data: Path | None, out: Path, checkpoint: str = "") -> VerifyResult:
    return verify.verify_checkpoint(file, TaskRequest(checkpoint, str(data) if data else None, 0, device="cpu"), out)


def test_verify_score_within_tolerance_is_reached(tmp_path: Path, checkpoint: Path, data: Path) -> None:
    file = write_recipe(tmp_path / "r.toml", checkpoint, sst2=100.9, race=50.0)
    with pytest.raises(ConfigError, match=r"expected\.sst2 is 100\.9: .*less than or equal to 100"):
        verify_scores(file, data, tmp_path / "out")
    file = write_recipe(tmp_path / "r.toml", checkpoint, sst2=99.5, race=50.0)
    assert verify.is_verify_recipe(file)
    assert not verify.is_verify_recipe("finetune/sst2")
    assert not verify.is_verify_recipe("sst2")
    result = verify_scores(file, data, tmp_path / "out")
    assert result.tasks["sst2"].to_json() == {
        "published": {"accuracy": 99.5}, "tolerance": 1.0, "scores": {"accuracy": 100.0}, "runs": 1,
        "verdict": "reached",
    }  # fmt: skip
    assert result.tasks["race"].verdict == "skipped"
    assert "holds none of" in str(result.tasks["race"].reason)
    assert result.average == {"published": 99.5, "measured": 100.0}
    assert result.reached
    assert result.to_json() == store.read_json(tmp_path / "out" / "results.json")
    verify.require_reached(result)
    printed = format_result(result)
    for text in ("Avg of 1", "sst2", "reached", "skipped: "):
        assert text in printed
    scored = verify_scores(file, data, tmp_path / "scored", str(tmp_path / "out" / "sst2" / "run-0"))
    assert scored.tasks["sst2"] == result.tasks["sst2"].model_copy(update={"runs": None}), "nothing was trained"


def test_verify_score_below_tolerance_exits_with_7(tmp_path: Path, checkpoint: Path, data: Path) -> None:
    file = write_recipe(tmp_path / "r.toml", checkpoint, 0.5, sst2=99.5)
    dev = data / "glue" / "SST-2" / "dev.tsv"
    harder = tmp_path / "glue" / "SST-2"
    harder.mkdir(parents=True)
    (harder / "train.tsv").write_text(dev.read_text())
    (harder / "dev.tsv").write_text(dev.read_text().replace("5\t1", "5\t0"))
    result = verify_scores(file, tmp_path, tmp_path / "out")
    task = result.tasks["sst2"]
    assert (task.tolerance, task.verdict) == (0.5, "not reached")
    assert task.scores["accuracy"] < 99
    with pytest.raises(ScoreNotReachedError, match="sst2: diverged, or below the published score") as raised:
        verify.require_reached(result)
    assert raised.value.exit_code == 7
    file = write_recipe(tmp_path / "r.toml", checkpoint, 99.0, sst2=99.5)
    assert verify_scores(file, tmp_path, tmp_path / "out").reached, "with a tolerance of 99"
    assert store.read_json(tmp_path / "out" / "sst2" / "results.json")["seeds"] == [0]


def test_verify_diverged_task_is_not_reached(
    tmp_path: Path, checkpoint: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge_runs(monkeypatch, lambda _: True)
    file = write_recipe(tmp_path / "r.toml", checkpoint, sst2=99.5, race=50.0)
    result = verify_scores(file, data, tmp_path / "out")
    assert (result.tasks["sst2"].verdict, result.reached) == ("diverged", False)
    assert "diverged: SST-2: its only seed diverged; seed 0: step 1" in format_result(result)
    with pytest.raises(ScoreNotReachedError, match="sst2"):
        verify.require_reached(result)


def test_verify_squad2_uses_the_best_threshold(
    tmp_path: Path, checkpoint: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F1 and exact match are those at the best threshold, not those at threshold 0."""
    file = write_recipe(tmp_path / "r.toml", checkpoint)
    with Path(file).open("a") as stream:
        stream.write("squad2 = { best_f1 = 82.1, best_em = 79.3 }\n")
    scores = {"f1": [0.10], "em": [0.09], "best_f1": [0.821], "best_em": [0.79]}
    monkeypatch.setattr(verify, "evaluate", lambda *_: evaluation_result(task="squad2", metric="f1", all_scores=scores))
    (tmp_path / "out").mkdir()  # the evaluation would create it
    result = verify_scores(file, data, tmp_path / "out")
    assert result.tasks["squad2"].scores == pytest.approx({"best_f1": 82.1, "best_em": 79.0})
    assert result.reached
    assert "82.1/79.3" in format_result(result)
    with Path(file).open("a") as stream:
        stream.write("[tolerance_of]\nsquad2 = 0.2\n")
    assert not verify_scores(file, data, tmp_path / "out").reached


@pytest.mark.parametrize("folder", ["SQuAD", "sQuAD"])
def test_find_task_data_matches_any_case(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    assert verify.find_task_data("squad1", str(tmp_path)) == str(tmp_path / folder)
    assert verify.find_task_data("rte", str(tmp_path)) == str(tmp_path)


def test_verify_without_data_is_skipped(tmp_path: Path, checkpoint: Path) -> None:
    file = write_recipe(tmp_path / "r.toml", checkpoint, sst2=99.5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Skipped, match=r"is skipped: .*SST-2/train\.tsv") as raised:
        verify_scores(file, tmp_path / "empty", tmp_path / "out")
    assert raised.value.exit_code == 77
    nowhere = write_recipe(tmp_path / "nowhere.toml", tmp_path / "nowhere", sst2=99.5)
    with pytest.raises(Skipped, match="nowhere: no such directory"):
        verify_scores(nowhere, None, tmp_path / "out")


def test_verify_missing_or_damaged_inputs_raise(tmp_path: Path, checkpoint: Path, data: Path) -> None:
    file = write_recipe(tmp_path / "r.toml", checkpoint, sst2=99.5)
    with pytest.raises(CheckpointError, match="nowhere: no such directory"):
        verify_scores(file, data, tmp_path / "out", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="nowhere: no such directory"):
        verify_scores(file, tmp_path / "nowhere", tmp_path / "out")
    shutil.copytree(data, tmp_path / "damaged")
    with (tmp_path / "damaged" / "glue" / "SST-2" / "train.tsv").open("a") as stream:
        stream.write("cut\n")
    with pytest.raises(InputError, match=r"train\.tsv:8: 1 field instead of 2"):
        verify_scores(file, tmp_path / "damaged", tmp_path / "out")
    call = ["eval", file, "--data", data, "--out", tmp_path / "out"]
    for option in (
        ["--retrain"],
        ["--task", "0/2"],
        ["--split", "test"],
        ["--no-baselines"],
        ["--cluster", "tcp://a:1"],
    ):
        assert "takes only --out, --checkpoint" in albert(*call, *option, expect=2).err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("x")
    with pytest.raises(BusyError, match="holds other files"):
        verify_scores(file, data, tmp_path / "full")
    assert not (tmp_path / "out").exists()


def test_verify_offline_is_skipped_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All tests run with HF_HUB_OFFLINE=1; the user's cache of the Hub may contain the model."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    ended = albert("eval", "verify/albert-base-v2", "--out", tmp_path / "out", expect=77)
    assert ended.out == ""
    assert not (tmp_path / "out").exists()
    lines = [line for line in ended.err.splitlines() if line.strip()]
    search, skipped, hint = lines
    assert search.startswith("albert/albert-base-v2:")
    assert "Hugging Face Hub" in search
    assert "skipped: albert/albert-base-v2" in skipped
    assert hint.startswith("hint:")


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("size", ["base", "large", "xlarge", "xxlarge"])
def test_verify_recipe_has_the_published_scores(size: str, version: str) -> None:
    shipped = config.load_recipe(VerifyRecipe, f"verify/albert-{size}-{version}")
    assert shipped.checkpoint == f"albert/albert-{size}-{version}"
    published = load_published_scores()[f"ALBERT-{size} {version}"]
    for task, scores in published.items():
        assert shipped.expected[task] == pytest.approx(scores, abs=0.11), task  # one published RACE score is on test


def test_verify_recipe_of_base_v2_is_exact() -> None:
    shipped = config.load_recipe(VerifyRecipe, "verify/albert-base-v2")
    assert shipped.expected == load_published_scores()["ALBERT-base v2"]
    assert shipped.checkpoint == "albert/albert-base-v2"


@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("size", ["base", "large", "xlarge", "xxlarge"])
def test_verify_recipe_tolerance_of_single_tasks(size: str, version: str) -> None:
    shipped = config.load_recipe(VerifyRecipe, f"verify/albert-{size}-{version}")
    # Only one recipe has a score of RACE's test split, which is compared with a score on dev.
    assert shipped.tolerance_of == ({"race": 2.0} if (size, version) == ("xxlarge", "v1") else {})


def test_verify_recipe_with_invalid_values_raises() -> None:
    with pytest.raises(ConfigError, match="the recipe expects no scores"):
        VerifyRecipe("x", "y", {})
    for scores in ({}, {"accuracy": 90.0, "f1": 80.0}):
        with pytest.raises(ConfigError, match=r"expected\.sst2: the published scores are accuracy"):
            VerifyRecipe("x", "y", {"sst2": scores})
    with pytest.raises(ConfigError, match=r"runs is 0: .*greater than or equal to 1"):
        config.validate_recipe(VerifyRecipe, {"checkpoint": "x", "source": "y", "runs": 0}, "recipe")
    with pytest.raises(ConfigError, match=r"tolerance is inf: .*less than or equal to 100"):
        config.validate_recipe(VerifyRecipe, {"checkpoint": "x", "source": "y", "tolerance": float("inf")}, "recipe")
