"""Predictions of the test file at the end of `finetune`, `eval` and `ensemble`."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from albert_cli.training import device
from tests.helpers.command import QUICK, albert, write_table


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the rows of a table by the delimiter of its ending."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream, delimiter="," if path.suffix == ".csv" else "\t"))


def read_probabilities(path: Path) -> list[dict[str, float]]:
    """Read the probabilities of the rows of a file of JSON lines."""
    return [json.loads(line)["probabilities"] for line in path.read_text(encoding="utf-8").splitlines()]


def flat_probabilities(row: dict[str, str]) -> dict[str, float]:
    """Return the probability of each label in a row of a table."""
    names = [name for name in row if name.startswith("probability_")]
    return {name.removeprefix("probability_"): float(row[name]) for name in names}


def test_test_file_txt_is_a_table(encoder: Path, tmp_path: Path) -> None:
    data = write_table(tmp_path / "data")
    (data / "test.txt").write_text("key\ttext\nx\tbade fi\ny\tkraste su\n")
    call = ["--data", data, "--out"]
    albert("finetune", "table", "--checkpoint", encoder, *call, tmp_path / "run", *QUICK)
    albert("eval", "table", "--checkpoint", encoder, *call, tmp_path / "scores", "--runs", 2, *QUICK)
    albert("ensemble", "table", tmp_path / "scores", *call, tmp_path / "both", "--device", "cpu")
    for folder in ("run", "scores", "both"):
        rows = read_table(tmp_path / folder / "predictions.test.tsv")
        assert [row["key"] for row in rows] == ["x", "y"]
        assert {row["prediction"] for row in rows} <= {"good", "bad"}


def test_test_file_txt_of_choices_is_a_table(encoder: Path, tmp_path: Path) -> None:
    rows = "".join(f"bade {i}\tfigo\tluma\t{'AB'[i % 2]}\n" for i in range(8))
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text("question\tchoice1\tchoice2\tlabel\n" + rows)
    albert("finetune", "table", "--checkpoint", encoder, "--data", tmp_path, "--out", tmp_path / "run", *QUICK)
    predicted = read_table(tmp_path / "run" / "predictions.test.tsv")
    assert [row["question"] for row in predicted] == [f"bade {i}" for i in range(8)]


def test_test_file_is_read_by_the_columns_of_the_command(encoder: Path, tmp_path: Path) -> None:
    data = write_table(tmp_path / "data")
    albert("finetune", "table", "--checkpoint", encoder, "--data", data, "--out", tmp_path / "run", *QUICK)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    scored = tmp_path / "scored"
    scored.mkdir()
    rows = "review,text,label\nbade fi gowi zo,x,good\nkraste su luma,x,bad\n"
    (scored / "dev.csv").write_text(rows)
    (scored / "test.csv").write_text(rows)
    call = ["--data", scored, "-s", "table.text=review", "--device", "cpu", "--out"]
    albert("eval", "table", "--checkpoint", tmp_path / "run", *call, tmp_path / "eval")
    albert("ensemble", "table", tmp_path / "run", tmp_path / "copy", *call, tmp_path / "ensemble")
    for folder in (tmp_path / "eval", tmp_path / "ensemble"):
        expected = read_probabilities(folder / "predictions.dev.jsonl")
        predicted = [flat_probabilities(row) for row in read_table(folder / "predictions.test.csv")]
        assert predicted == [pytest.approx(probabilities, abs=2e-5) for probabilities in expected]


@pytest.mark.parametrize("column", ["prediction", "probability_good"])
def test_check_test_file_rejects_a_column_of_predictions(encoder: Path, tmp_path: Path, column: str) -> None:
    data = write_table(tmp_path / "data")
    (data / "test.tsv").write_text(f"text\t{column}\nbade\t0\n")
    call = ["--checkpoint", encoder, "--data", data, "--out", tmp_path / "out", *QUICK]
    for verb in ("finetune", "eval"):
        assert f"test.tsv: already has a column '{column}'" in albert(verb, "table", *call, expect=3).err
        assert not (tmp_path / "out").exists()


def test_test_file_is_predicted_in_the_train_precision(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # "auto" is bf16 here, so the test fails for fp32 if prediction ignores train.precision.
    monkeypatch.setattr(device, "_choose_precision", lambda config, device: "bf16")
    data = write_table(tmp_path / "data")
    shutil.copy(data / "dev.tsv", data / "test.tsv")
    for precision in ("fp32", "bf16"):
        out = tmp_path / precision
        options = [*QUICK, "-s", f"train.precision={precision}"]
        albert("finetune", "table", "--checkpoint", encoder, "--data", data, "--out", out / "run", *options)
        albert("eval", "table", "--checkpoint", out / "run", "--data", data, "--out", out / "eval", *options)
        for folder in (out / "run", out / "eval"):
            predicted = [flat_probabilities(row) for row in read_table(folder / "predictions.test.tsv")]
            assert predicted == read_probabilities(folder / "predictions.dev.jsonl")


def test_test_file_is_predicted_with_the_model_labels(encoder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(encoder)
    transformers.AlbertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    for name in ("spiece.model", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(encoder / name, tmp_path / "model")
    for split in ("dev", "test"):
        (tmp_path / f"{split}.csv").write_text("text,label\nbade fi,good\nkraste su,bad\n")
    labels = ["-s", 'table.labels=["good","bad"]', "-s", 'model.labels=["good","bad"]']
    call = ["--data", tmp_path, "--out", tmp_path / "out", "--device", "cpu", *labels]
    albert("eval", "table", "--checkpoint", tmp_path / "model", *call)
    expected = read_probabilities(tmp_path / "out" / "predictions.dev.jsonl")
    predicted = [flat_probabilities(row) for row in read_table(tmp_path / "out" / "predictions.test.csv")]
    assert predicted == expected and predicted[0].keys() == {"good", "bad"}


def test_files_set_by_path_may_move_but_not_change(encoder: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "data")
    run = ["finetune", "table", "--checkpoint", encoder, *QUICK, "--out", tmp_path / "run", "--json"]
    score = [
        "eval",
        "table",
        "--checkpoint",
        tmp_path / "run",
        "--device",
        "cpu",
        "--out",
        tmp_path / "scored",
        "--json",
    ]
    results = []
    for folder in ("data", "moved"):
        (tmp_path / "data").rename(tmp_path / folder)  # the first rename changes nothing
        files = [
            word for split in ("train", "dev") for word in ("-s", f"table.{split}={tmp_path / folder / split}.tsv")
        ]
        results.append([albert(*call, *files).out for call in (run, score)])
    assert results[0] == results[1]
    (tmp_path / "new.csv").write_text("text\nbade fi\n")
    albert(*run, *files, "-s", f"table.test={tmp_path / 'new.csv'}")
    assert [row["text"] for row in read_table(tmp_path / "run" / "predictions.test.csv")] == ["bade fi"]
    (tmp_path / "moved" / "train.tsv").write_text("text\tlabel\nbade\tgood\nluma\tbad\n")
    assert "was started with other data" in albert(*run, *files, expect=2).err


def test_predict_test_file_deletes_earlier_predictions(encoder: Path, tmp_path: Path) -> None:
    data = write_table(tmp_path / "data")
    (data / "test.csv").write_text("text\nbade fi\n")
    scores = tmp_path / "scores"
    both = tmp_path / "both"

    def predict() -> list[list[str]]:
        albert("eval", "table", "--checkpoint", encoder, "--runs", 2, *QUICK, "--data", data, "--out", scores)
        albert("ensemble", "table", scores, "--device", "cpu", "--data", data, "--out", both)
        return [sorted(path.name for path in out.glob("predictions.test*")) for out in (scores, both)]

    assert predict() == [["predictions.test.csv"]] * 2
    (data / "test.csv").rename(data / "test.tsv")
    assert predict() == [["predictions.test.tsv"]] * 2
    (data / "test.tsv").unlink()
    assert predict() == [[], []]
