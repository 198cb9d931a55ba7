"""`albert predict`, and what else a task checkpoint is used for."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from albert_cli import store
from albert_cli.errors import CheckpointError, InputError
from albert_cli.inference.fill_mask import fill_masks
from albert_cli.inference.predict import load_predictor, predict_file
from albert_cli.model import hub, loading
from albert_cli.model.heads import PretrainingModel, SequenceClassifier
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.approximate import approximate
from tests.helpers.command import albert
from tests.helpers.task_runs import SHAPE, sentence

Tuned = Callable[[str], Path]


def test_task_checkpoint_records_its_task(tuned: Tuned) -> None:
    assert hub.read_checkpoint(tuned("mnli")).finetuned_task == hub.FinetunedTask("mnli", 2, 24)
    assert store.read_json(tuned("mnli") / "config.json")["finetuning_task"] == "mnli"
    assert store.read_json(tuned("mnli") / "tokenizer_config.json")["model_max_length"] == 48


@pytest.mark.parametrize(
    ("task", "lines", "message"),
    [
        ("cola", "bade figo\nbade\tfigo\n", r"in\.txt:2: two texts, but the model reads single texts"),
        ("mnli", "bade\tfigo\n\nwi\tne\n", r"in\.txt:2: one text, but the model reads pairs of texts"),
    ],
)
def test_predict_wrong_number_of_texts_is_rejected(
    tuned: Tuned, tmp_path: Path, task: str, lines: str, message: str
) -> None:
    (tmp_path / "in.txt").write_text(lines)
    with pytest.raises(InputError, match=message):
        predict_file(str(tuned(task)), str(tmp_path / "in.txt"), tmp_path / "out.jsonl", "cpu")
    assert not (tmp_path / "out.jsonl").exists()


def test_inference_memory_warning_comes_first(
    tuned: Tuned, glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cola, text = tuned("cola"), tmp_path / "in.txt"
    text.write_text("bade figo\n")
    score = ("eval", "cola", "--data", glue, "--out", tmp_path / "out", "--device", "cpu")
    for call in (("predict", cola, "--input", text), ("encode", cola, "--input", text), (*score, "--checkpoint", cola)):
        with monkeypatch.context() as small:
            small.setattr("albert_cli.machine.memory_info", lambda: {"total": 2**20, "available": 2**20})
            printed = albert(*call).err
        assert printed.count("warning: inference may take ") == 1 and "1.05 MB are free" in printed


def test_predict_truncates_as_in_fine_tuning(tuned: Tuned, tmp_path: Path) -> None:
    long = " ".join(sentence(i) for i in range(20))
    vocabulary = Vocabulary.load(tuned("cola"))
    ids = vocabulary.encode(long)[:22]
    (tmp_path / "in.txt").write_text(f"{long}\n{long} {long}\n")
    predict_file(str(tuned("cola")), str(tmp_path / "in.txt"), tmp_path / "out.jsonl", "cpu")
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert rows[0]["probabilities"] == approximate(rows[1]["probabilities"])
    checkpoint = hub.read_checkpoint(tuned("cola"))
    model = SequenceClassifier(checkpoint.config, 2)
    loading.load_weights(model.eval(), checkpoint, loading.LoadPolicy.EVERYTHING)
    from albert_cli.data.batches import PackedBatch
    from albert_cli.model.packing import pack

    whole = np.array([vocabulary.cls_id, *ids, vocabulary.sep_id], np.int32)
    none, offsets = np.empty(0, np.int32), np.array([0, len(whole)], np.int32)
    batch = PackedBatch(whole, np.zeros_like(whole), np.arange(len(whole), dtype=np.int32), offsets, none, none, none)
    with torch.inference_mode():
        expected = model(pack(batch, torch.device("cpu"))).softmax(-1)[0].tolist()
    assert list(rows[0]["probabilities"].values()) == pytest.approx(expected, abs=2e-5)


def test_predict_longest_input_is_after_truncation(
    tuned: Tuned, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.txt").write_text(" ".join(sentence(i) for i in range(20)) + "\n")
    summary = predict_file(str(tuned("cola")), str(tmp_path / "in.txt"), tmp_path / "out.jsonl", "cpu")
    assert (summary.truncated, summary.longest) == (1, 24)
    assert "longest input after truncation has 24 tokens" in capfd.readouterr().err


def test_predict_reads_bom_and_keeps_the_input(tuned: Tuned, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "bade figo"}\r\n')
    (tmp_path / "in.txt").write_bytes(b"bade figo\n")
    names = ("in.jsonl", "in.txt")
    rows = [json.loads(albert("predict", tuned("cola"), "--input", tmp_path / name).out) for name in names]
    assert rows[0] == {"text": "bade figo", **rows[1]}
    for verb in ("predict", "encode"):
        call = [verb, tuned("cola"), "--input", tmp_path / "in.jsonl", "--out", tmp_path / "in.jsonl"]
        assert "in.jsonl: is the input" in albert(*call, expect=2).err
    assert (tmp_path / "in.jsonl").stat().st_size == 26


@pytest.mark.parametrize("name", ["in.json", "in.json.gz", "in.ndjson.gz", "in.csv.gz"])
def test_predict_reads_arrays_and_compressed_tables(name: str, tuned: Tuned, tmp_path: Path) -> None:
    (tmp_path / "plain.jsonl").write_text('{"id": "7", "text": "bade figo"}\n')
    expected = json.loads(albert("predict", tuned("cola"), "--input", tmp_path / "plain.jsonl").out)
    texts = {
        ".csv": "id,text\n7,bade figo\n",
        ".json": '[\n{"id": "7",\n"text": "bade figo"}]\n',
        ".ndjson": '{"id": "7", "text": "bade figo"}\n',
    }
    content = texts[Path(name.removesuffix(".gz")).suffix].encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert json.loads(albert("predict", tuned("cola"), "--input", tmp_path / name).out) == expected


def test_predict_json_document_is_rejected(tuned: Tuned, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{\n"text": "bade figo"}\n')
    for verb in ("predict", "encode"):
        printed = albert(verb, tuned("cola"), "--input", tmp_path / "in.json", expect=3)
        assert "in.json: is one JSON document" in printed.err and ".jsonl" in printed.err and printed.out == ""


def test_predict_json_option_needs_out(tuned: Tuned, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("bade figo\n")
    printed = albert("predict", tuned("cola"), "--input", tmp_path / "in.txt", "--json", expect=2)
    assert "hint: use --out FILE" in printed.err and printed.out == ""
    out = tmp_path / "out.jsonl"
    printed = albert("predict", tuned("cola"), "--input", tmp_path / "in.txt", "--json", "--out", out)
    assert json.loads(printed.out)["lines"] == 1


def test_fill_masks_without_masked_head_is_rejected(tuned: Tuned, encoder: Path) -> None:
    assert fill_masks(str(encoder), ["bade [MASK] figo"], 5, "cpu").texts[0].masks
    with pytest.raises(CheckpointError, match="has no masked-language head"):
        fill_masks(str(tuned("cola")), ["bade [MASK] figo"], 5, "cpu")


def test_load_weights_everything_needs_all_heads(encoder: Path, tmp_path: Path) -> None:
    checkpoint = hub.read_checkpoint(encoder)
    without = dataclasses.replace(
        checkpoint, tensors={n: t for n, t in checkpoint.tensors.items() if n != "order.bias"}
    )
    with pytest.raises(CheckpointError, match=r"order\.bias is missing"):
        loading.load_weights(PretrainingModel(SHAPE), without, loading.LoadPolicy.EVERYTHING)


def test_load_predictor_prints_the_classes_of_pairs(
    tiny_vocabulary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with store.commit_directory(tmp_path / "nsp", "checkpoint") as staging:
        hub.write_checkpoint(PretrainingModel(SHAPE), staging, "ForPreTraining", order_classes=hub.ORDER_CLASSES["nsp"])
        Vocabulary.load(tiny_vocabulary).copy_to(staging, SHAPE.max_position_embeddings)
    load_predictor(str(tmp_path / "nsp"), "cpu", "fp32")
    assert "(next, other document)" in capfd.readouterr().err
