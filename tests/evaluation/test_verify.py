"""Verifying published scores: a local checkpoint with scores of our own stands in for the Hub's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from albert_cli import config, store
from albert_cli.errors import BusyError, CheckpointError, ConfigError, InputError, NotReached, Skipped
from albert_cli.evaluation import verify
from albert_cli.evaluation.verify import Expected, VerifyRecipe
from albert_cli.model.config import ModelConfig
from albert_cli.report.published import PUBLISHED
from albert_cli.results import Result
from albert_cli.training.finetune import TaskJob
from tests.checkpoints import untrained
from tests.command import albert

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
    """SST-2 alone, in the folder of several benchmarks; always one class."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "glue" / "SST-2").mkdir(parents=True)
    for split in ("train", "dev"):
        lines = ["sentence\tlabel", *(f"bade figo {i}\t1" for i in range(6))]
        (folder / "glue" / "SST-2" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def recipe(path: Path, checkpoint: Path | str, **scores: float) -> str:
    """A recipe with these expected scores."""
    lines = [f'checkpoint = "{checkpoint}"', 'source = "here"', "tolerance = 1.0", f"overrides = {QUICK}"]
    lines += [line for task, score in scores.items() for line in (f"[expected.{task}]", f"score = {score}")]
    path.write_text("\n".join(lines).replace("'", '"') + "\n")
    return str(path)


def test_a_score_within_the_tolerance_is_reached(tmp_path: Path, checkpoint: Path, data: Path) -> None:
    file = recipe(tmp_path / "r.toml", checkpoint, sst2=100.9, race=50.0)
    with pytest.raises(ConfigError, match=r"expected\.sst2: .*less than or equal to 100 \(got 100\.9\)"):
        verify.verify(file, None, str(data), tmp_path / "out", None, [], "cpu")
    file = recipe(tmp_path / "r.toml", checkpoint, sst2=99.5, race=50.0)
    assert verify.is_recipe(file) and not verify.is_recipe("finetune/sst2") and not verify.is_recipe("sst2")
    result = verify.verify(file, None, str(data), tmp_path / "out", None, [], "cpu")
    assert result["tasks"]["sst2"] == {
        "published": {"accuracy": 99.5}, "tolerance": 1.0, "scores": {"accuracy": 100.0}, "runs": 1,
        "verdict": "reached",
    }  # fmt: skip
    assert result["tasks"]["race"]["verdict"] == "skipped" and "is not there" in result["tasks"]["race"]["reason"]
    assert result["average"] == {"published": 99.5, "here": 100.0} and "Avg of 1" in verify.text(result)
    assert result["reached"] and result == store.read_json(tmp_path / "out" / "results.json")
    verify.check(result)
    said = verify.text(result)
    assert "sst2" in said and "reached" in said and "skipped: " in said


def test_a_score_below_the_tolerance_is_said_and_ends_with_7(
    tmp_path: Path, checkpoint: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = recipe(tmp_path / "r.toml", checkpoint, sst2=99.5)
    dev = data / "glue" / "SST-2" / "dev.tsv"
    other = tmp_path / "glue" / "SST-2"
    other.mkdir(parents=True)
    (other / "train.tsv").write_text(dev.read_text())
    (other / "dev.tsv").write_text(dev.read_text().replace("5\t1", "5\t0"))
    result = verify.verify(file, None, str(tmp_path), tmp_path / "out", None, ["tolerance=0.5"], "cpu")
    found = result["tasks"]["sst2"]
    assert found["tolerance"] == 0.5 and found["scores"]["accuracy"] < 99 and found["verdict"] == "not reached"
    with pytest.raises(NotReached, match="sst2: below the published score") as raised:
        verify.check(result)
    assert raised.value.exit_code == 7
    wider = verify.verify(file, None, str(tmp_path), tmp_path / "out", None, ["tolerance=99.0"], "cpu")
    assert wider["reached"]  # and nothing is trained again
    assert store.read_json(tmp_path / "out" / "sst2" / "results.json")["seeds"] == [0]


def test_a_task_of_which_every_seed_diverges_is_not_reached(
    tmp_path: Path, checkpoint: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = TaskJob.loss_sums
    monkeypatch.setattr(TaskJob, "loss_sums", lambda *a: {n: v * float("nan") for n, v in plain(*a).items()})
    file = recipe(tmp_path / "r.toml", checkpoint, sst2=99.5, race=50.0)
    result = verify.verify(file, None, str(data), tmp_path / "out", None, [], "cpu")
    assert (result["tasks"]["sst2"]["verdict"], result["reached"]) == ("diverged", False)
    assert "diverged: SST-2: its only seed diverged; seed 0: step 0" in verify.text(result)
    with pytest.raises(NotReached, match="sst2"):
        verify.check(result)


def test_squad_is_compared_as_it_was_published(
    tmp_path: Path, checkpoint: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2.0 F1 and exact match at the best threshold: what is at threshold 0 is another number."""
    file = recipe(tmp_path / "r.toml", checkpoint, squad2=82.1)
    with Path(file).open("a") as stream:
        stream.write("exact_match = 79.3\n")
    scores = {"f1": [0.10], "em": [0.09], "best_f1": [0.821], "best_em": [0.79]}
    monkeypatch.setattr(verify, "evaluate", lambda *_: Result(median=0.10, metric="f1", all_scores=scores))
    (tmp_path / "out").mkdir()  # what the evaluation would make
    result = verify.verify(file, None, str(data), tmp_path / "out", None, [], "cpu")
    assert result["tasks"]["squad2"]["scores"] == pytest.approx({"best_f1": 82.1, "best_em": 79.0})
    assert result["reached"] and "82.1/79.3" in verify.text(result)
    assert not verify.verify(file, None, str(data), tmp_path / "out", None, ["tolerance=0.2"], "cpu")["reached"]


def test_without_data_or_checkpoint_it_is_skipped(tmp_path: Path, checkpoint: Path) -> None:
    file = recipe(tmp_path / "r.toml", checkpoint, sst2=99.5)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Skipped, match=r"is skipped: .*SST-2/train\.tsv") as raised:
        verify.verify(file, None, str(tmp_path / "empty"), tmp_path / "out", None, [], "cpu")
    assert raised.value.exit_code == 77
    nowhere = recipe(tmp_path / "nowhere.toml", tmp_path / "nowhere", sst2=99.5)
    with pytest.raises(Skipped, match="nowhere: no such directory"):
        verify.verify(nowhere, None, None, tmp_path / "out", None, [], "cpu")


def test_what_the_user_named_must_be_there(tmp_path: Path, checkpoint: Path, data: Path) -> None:
    file = recipe(tmp_path / "r.toml", checkpoint, sst2=99.5)
    with pytest.raises(CheckpointError, match="nowhere: no such directory"):
        verify.verify(file, str(tmp_path / "nowhere"), str(data), tmp_path / "out", None, [], "cpu")
    with pytest.raises(InputError, match="nowhere: no such directory"):
        verify.verify(file, None, str(tmp_path / "nowhere"), tmp_path / "out", None, [], "cpu")
    shutil.copytree(data, tmp_path / "damaged")
    with (tmp_path / "damaged" / "glue" / "SST-2" / "train.tsv").open("a") as stream:
        stream.write("cut\n")
    with pytest.raises(InputError, match=r"train\.tsv:8: 1 fields where 2 are expected"):
        verify.verify(file, None, str(tmp_path / "damaged"), tmp_path / "out", None, [], "cpu")
    call = ["eval", file, "--data", data, "--out", tmp_path / "out"]
    assert "takes no --submission" in albert(*call, "--again", expect=2).err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("x")
    with pytest.raises(BusyError, match="holds other files"):
        verify.verify(file, None, str(data), tmp_path / "full", None, [], "cpu")
    assert not (tmp_path / "out").exists()


def test_offline_one_line_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "albert_cli", "eval", "verify/albert-base-v2", "--out", str(tmp_path / "out")]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 77, done.stderr
    assert done.stdout == "" and not (tmp_path / "out").exists()
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 2 and "skipped: albert/albert-base-v2" in lines[0] and lines[1].startswith("hint:")


def test_the_shipped_recipe_has_the_published_scores() -> None:
    shipped = config.load(VerifyRecipe, "verify/albert-base-v2")
    scores = {task: expected.scores for task, expected in shipped.expected.items()}
    assert scores == {task: tuple(by_metric.values()) for task, by_metric in PUBLISHED["ALBERT-base v2"].items()}
    assert shipped.checkpoint == "albert/albert-base-v2" and shipped.tolerance_of("race") > shipped.tolerance_of("mnli")
    with pytest.raises(ConfigError, match="names no task"):
        VerifyRecipe("x", "y", {})
    with pytest.raises(ConfigError, match=r"expected\.sst2\.exact_match"):
        VerifyRecipe("x", "y", {"sst2": Expected(90.0, exact_match=80.0)})
    with pytest.raises(ConfigError, match=r"runs: .*greater than or equal to 1 \(got 0\)"):
        config.validate(VerifyRecipe, {"checkpoint": "x", "source": "y", "runs": 0}, "recipe")
