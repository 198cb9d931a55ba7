"""Tests of fine-tuning, evaluation and prediction on a small table, end to end."""

from __future__ import annotations

import json
import random
import shutil
import statistics
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from albert_cli import journal, store
from albert_cli.errors import CheckpointError, ConfigError, DivergedError
from albert_cli.evaluation.tables import protocol_pairs
from albert_cli.inference.predict import predict_file
from albert_cli.model import hub
from albert_cli.model.heads import SequenceClassifier
from albert_cli.tasks.features import PairFeatures
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training import device
from albert_cli.training.checkpoint import TrainState
from albert_cli.training.finetune import FinetuneJob
from albert_cli.training.task_setup import PreparedTask
from tests.helpers.approximate import approximate
from tests.helpers.checkpoints import untrained
from tests.helpers.nfs import emulate_nfs, needs_maps
from tests.helpers.processes import albert, start, terminate_at_step
from tests.helpers.runs import LAST
from tests.helpers.task_runs import SHAPE, build_model, evaluate, finetune, prepare, summarize

OVERRIDES = (
    "optimizer.lr=5e-3", "schedule.total_steps=18", "schedule.warmup_steps=3", "train.batch_size=8",
    "train.micro_batch_size=8", "train.eval_every=6", "train.log_every=6", "train.save_every=5", "train.precision=fp32",
)  # fmt: skip
MODEL_FILES = ("config.json", "model.safetensors", "spiece.model", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="session")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a table of sentences that each contain one of two words: the label."""
    folder = tmp_path_factory.mktemp("table")
    rng = random.Random(0)
    for name, rows in (("train", 80), ("dev", 40)):
        lines = ["text\tlabel"]
        for _ in range(rows):
            label = rng.choice(["kra", "wi"])
            words = [rng.choice(["bade", "figo", "luma"]) for _ in range(rng.randint(1, 6))]
            words[rng.randrange(len(words))] = "kra kra" if label == "kra" else "wi wi"
            lines.append(f"{' '.join(words)}\t{label}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def prepared(finished: Path, table: Path) -> PreparedTask:
    return prepare("table", str(finished), str(table), OVERRIDES, "cpu")


@pytest.fixture(scope="session")
def tuned(tmp_path_factory: pytest.TempPathFactory, prepared: PreparedTask) -> Path:
    """A finished fine-tuning run with seed 1, which tests must not change."""
    out = tmp_path_factory.mktemp("tuned") / "out"
    finetune(prepared, out, 1)
    return out


@pytest.fixture(scope="session")
def command(finished: Path, table: Path) -> Sequence[object]:
    """The arguments of `albert finetune` with seed 1, without --out."""
    overrides = [word for override in OVERRIDES for word in ("-s", override)]
    fixed = ("--checkpoint", finished, "--data", table, "--seed", 1, "--device", "cpu")
    return ("finetune", "table", *fixed, *overrides)


def without_seconds(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "seconds"}


def predictions(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ---------------------------------------------------------------- one run


def test_finetune_learns_which_word_decides(table: Path, tiny_vocabulary: Path, tmp_path: Path) -> None:
    size = Vocabulary.load(tiny_vocabulary).size
    shape = replace(SHAPE, vocab_size=size, embedding_size=32, hidden_size=32, num_hidden_layers=1)
    encoder = untrained(tmp_path / "encoder", shape, tiny_vocabulary)
    overrides = (*OVERRIDES, "optimizer.lr=2e-3", "schedule.total_steps=30")
    prepared = prepare("table", str(encoder), str(table), overrides, "cpu")
    result = finetune(prepared, tmp_path / "out", 1)
    assert result["score"] > 0.9 > result["majority"]


def test_finetune_as_a_rank_is_rejected(
    prepared: PreparedTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(ConfigError, match="fine-tuning runs in one process") as caught:
        finetune(prepared, tmp_path / "out", 1)
    assert "albert eval --nproc" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


def test_finetune_records_its_settings(tuned: Path, prepared: PreparedTask) -> None:
    result = store.read_json(tuned / "results.json")
    assert result["score"] == result["scores"]["accuracy"] >= result["majority"] == 0.5
    assert (result["kind"], result["task"], result["metric"], result["seed"]) == ("run", "table", "accuracy", 1)
    assert result["labels"] == ["kra", "wi"]
    assert (result["protocol"]["weights"], result["protocol"]["steps"]) == ("pretrained", 18)
    assert result["examples"] == {"train": 80, "dev": 40}
    assert result["checkpoint"] == store.fingerprint(prepared.checkpoint.directory)
    assert {"albert", "torch"} <= set(result["versions"])
    status = store.read_json(tuned / "status.json")
    assert (status["state"], status["exit_code"], status["step"]) == ("done", 0, 18)
    assert not list(tuned.glob("step-*")) and not list(tuned.glob(".*.tmp"))


def test_finetune_from_a_deleted_step_finishes(finished: Path, table: Path, tmp_path: Path) -> None:
    """Pretraining keeps only its newest steps, so it may delete the step while the task trains."""
    step = Path(shutil.copytree(finished / LAST, tmp_path / "run" / LAST))
    prepared = prepare("table", str(tmp_path / "run"), str(table), (*OVERRIDES, "schedule.total_steps=6"), "cpu")
    fingerprint = store.fingerprint(step)
    shutil.rmtree(step)
    result = finetune(prepared, tmp_path / "out", 1)
    assert result["checkpoint"] == fingerprint
    assert store.verify(tmp_path / "out", "task").parents == {"checkpoint": fingerprint}
    assert finetune(prepared, tmp_path / "out", 1) == result


def test_finetune_damaged_result_names_the_key(tuned: Path, prepared: PreparedTask, tmp_path: Path) -> None:
    copy = shutil.copytree(tuned, tmp_path / "out")
    assert finetune(prepared, copy, 1)["score"] > 0
    results = store.read_json(copy / "results.json")
    for damaged, message in (({"score": "0.9"}, "score"), ({"scores": {"accuracyx": 0.9}}, r"scores\.accuracy")):
        store.write_json(copy / "results.json", results | damaged)
        with pytest.raises(CheckpointError, match=rf"results\.json: .*{message}"):
            finetune(prepared, copy, 1)


def test_finetune_keeps_the_best_evaluation(tuned: Path) -> None:
    result = store.read_json(tuned / "results.json")
    records = journal.read_journal(tuned / "metrics.jsonl")
    scores = {r["step"]: r["eval"]["accuracy"] for r in records if "eval" in r}
    assert list(scores) == [6, 12, 18]
    assert result["score"] == max(scores.values())
    assert result["best_step"] == next(step for step, score in scores.items() if score == max(scores.values()))
    rows = predictions(tuned / "predictions.dev.jsonl")
    assert np.mean([row["label"] == row["prediction"] for row in rows]) == pytest.approx(result["score"], abs=1e-6)
    manifest = store.verify(tuned, "task")
    assert set(manifest.files) == {*MODEL_FILES, "predictions.dev.jsonl"}


def test_finetuned_model_equals_transformers(tuned: Path, table: Path) -> None:
    model, info = transformers.AutoModelForSequenceClassification.from_pretrained(tuned, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tuned)
    texts = [line.split("\t")[0] for line in (table / "dev.tsv").read_text().splitlines()[1:]]
    with torch.inference_mode():
        logits = model.eval()(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    rows = predictions(tuned / "predictions.dev.jsonl")
    assert [model.config.id2label[int(i)] for i in logits.argmax(-1)] == [row["prediction"] for row in rows]
    for row, probabilities in zip(rows, logits.softmax(-1).tolist(), strict=True):
        assert list(row["probabilities"].values()) == pytest.approx(probabilities, abs=2e-5)


def test_finetune_epochs_become_steps(finished: Path, table: Path, tmp_path: Path) -> None:
    overrides = (*OVERRIDES, "schedule.epochs=1.5", "schedule.warmup_ratio=0.2", "train.eval_every=0")
    run = tmp_path / "run"
    result = finetune(prepare("table", str(finished), str(table), overrides, "cpu"), run, 1)
    protocol = result["protocol"]
    assert (protocol["steps"], protocol["epochs"], protocol["warmup_steps"], result["best_step"]) == (15, 1.5, 3, 15)
    assert [r["step"] for r in journal.read_journal(run / "metrics.jsonl") if "eval" in r] == [15]
    schedule = tomllib.loads((run / "recipe.toml").read_text())["schedule"]
    assert schedule == {"total_steps": 15, "warmup_ratio": 0.2}
    from_saved_recipe = prepare(str(run / "recipe.toml"), str(finished), str(table), (), "cpu")
    assert finetune(from_saved_recipe, run, 1) == result
    pairs = dict(protocol_pairs(summarize([result])))
    assert (pairs["steps"], pairs["batch size"], pairs["epochs"]) == ("15", "8", "1.5")
    assert (pairs["scored"], pairs["examples"]) == ("after the last step", "80 train and 40 dev")


def test_finetune_epochs_below_warmup_are_rejected(finished: Path, table: Path, tmp_path: Path) -> None:
    overrides = (*OVERRIDES, "schedule.epochs=1", "schedule.warmup_steps=320")
    with pytest.raises(ConfigError, match=r"warmup_steps is 320 and schedule\.total_steps 10: the learning"):
        finetune(prepare("table", str(finished), str(table), overrides, "cpu"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def train_labels(prepared: PreparedTask) -> list[Any]:
    examples: Any = prepared.load_inputs().train_examples
    return [example.label for example in examples]


def test_build_model_bias_from_labels(prepared: PreparedTask, tmp_path: Path) -> None:
    def initial_bias(task: PreparedTask) -> torch.Tensor:
        settings = replace(task.recipe.model, classifier_bias="labels")
        model = build_model(replace(task, recipe=replace(task.recipe, model=settings)), 0)
        default = build_model(task, 0)
        assert torch.equal(model.classifier.weight, default.classifier.weight)
        assert not default.classifier.bias.any()
        bias: torch.Tensor = model.classifier.bias.detach()
        return bias

    labels = train_labels(prepared)
    fraction = (labels.count(0) + 1) / (len(labels) + 2)
    assert initial_bias(prepared).exp().tolist() == pytest.approx([fraction, 1 - fraction])
    (tmp_path / "train.tsv").write_text("text\tlabel\nkra\t1.5\nwi\t2.5\nne\t3.5\n")
    values = prepare("table", str(prepared.checkpoint.directory), str(tmp_path), (), "cpu")
    bias = build_model(values, 0).state_dict()["classifier.bias"]  # a table's values have any size
    assert bias.tolist() == pytest.approx([statistics.mean(train_labels(values))])


def test_load_inputs_subset_depends_on_the_seed(prepared: PreparedTask, tmp_path: Path) -> None:
    request = prepared.request

    def sampled_ids(seed: int, count: int) -> list[str]:
        overrides = (*OVERRIDES, f"data.train_examples={count}")
        inputs = prepare("table", request.checkpoint, request.data, overrides, "cpu").load_inputs(seed)
        assert inputs.dev_examples == all_inputs.dev_examples
        return [example.id for example in inputs.train_examples]

    all_inputs = prepared.load_inputs()
    everything = [example.id for example in all_inputs.train_examples]
    assert len(set(sampled_ids(1, 10))) == 10
    assert set(sampled_ids(1, 10)) < set(sampled_ids(1, 20)) < set(everything)
    assert sampled_ids(1, 10) == sampled_ids(1, 10) != sampled_ids(2, 10)
    assert sorted(sampled_ids(3, 1000)) == sorted(everything)
    assert sampled_ids(3, 0) == everything
    overrides = (*OVERRIDES, "data.train_examples=16", "schedule.epochs=2")
    few = prepare("table", request.checkpoint, request.data, overrides, "cpu")
    results = [finetune(few, tmp_path / str(seed), seed) for seed in (0, 1)]
    assert results[0]["examples"] == {"train": 16, "dev": 40}
    assert results[0]["protocol"]["steps"] == 4
    assert results[0]["data"] != results[1]["data"]
    pairs = dict(protocol_pairs(summarize(results)))
    assert pairs["subset"] == "16 training examples sampled by the seed"


def test_load_inputs_dev_subset_is_the_same_for_all_seeds(prepared: PreparedTask, tmp_path: Path) -> None:
    request = prepared.request
    overrides = (*OVERRIDES, "data.dev_examples=7", "data.train_examples=10")
    few = prepare("table", request.checkpoint, request.data, overrides, "cpu")
    everything = prepared.load_inputs().dev_examples
    subset = few.load_inputs(0).dev_examples
    assert len(subset) == 7 and few.load_inputs(1).dev_examples == subset
    indices = [everything.index(example) for example in subset]
    assert indices == sorted(indices) and indices != list(range(7))  # sampled, in the order of the file
    result = finetune(few, tmp_path / "run", 0)
    assert result["examples"] == {"train": 10, "dev": 7}
    assert dict(protocol_pairs(summarize([result])))["scored on"] == "at most 7 examples of each dev split"


def test_load_inputs_both_orders_doubles_the_pairs(prepared: PreparedTask, finished: Path, tmp_path: Path) -> None:
    rows = [("kra bade", "figo", "yes"), ("luma", "wi wi wi", "no"), ("ne", "bade luma", "yes")]
    for name in ("train", "dev"):
        lines = "".join("\t".join(row) + "\n" for row in rows)
        (tmp_path / f"{name}.tsv").write_text("text\ttext_pair\tlabel\n" + lines)
    overrides = (*OVERRIDES[2:], 'table.text_pair="text_pair"', "schedule.epochs=4", "data.both_orders=true")
    both = prepare("table", str(finished), str(tmp_path), overrides, "cpu")
    inputs, size = both.load_inputs(), len(rows)
    features = inputs.train_features
    assert isinstance(features, PairFeatures)
    assert (len(features), len(inputs.train_examples), len(inputs.dev_features)) == (2 * size, size, size)
    for i in range(size):
        original, swapped = (features.batch(np.array([k]))[0] for k in (i, size + i))
        first, second = (original.ids[1:][original.segment_ids[1:] == k].tolist() for k in (0, 1))
        assert first != second
        assert swapped.ids.tolist() == [original.ids[0], *second, *first]
        assert features.gold[i] == features.gold[size + i]
    result = finetune(both, tmp_path / "run", 0)
    assert result["protocol"]["steps"] == 3 and result["examples"]["train"] == size
    assert dict(protocol_pairs(summarize([result])))["epochs"] == "4 (each pair in both orders)"
    unpaired = prepare("table", prepared.request.checkpoint, prepared.request.data, ("data.both_orders=true",), "cpu")
    with pytest.raises(ConfigError, match="table has no pairs of texts"):
        finetune(unpaired, tmp_path / "alone", 0)


def test_finetune_resume_keeps_resolved_auto(
    finished: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    precisions = []
    monkeypatch.setattr(device, "_MIN_BF16_WIDTH", 1)
    monkeypatch.setattr(device, "measure_bf16_speedup", lambda: 2.0)
    for _ in range(2):
        overrides = (*OVERRIDES, "schedule.total_steps=6", "train.precision=auto")
        prepared = prepare("table", str(finished), str(table), overrides, "cpu")
        precisions.append(finetune(prepared, run)["precision"])
        (run / "results.json").unlink()  # as if the run had been killed before it wrote them
        assert 'precision = "bf16"\n' in (run / "recipe.toml").read_text()
        monkeypatch.setattr(device, "measure_bf16_speedup", lambda: 0.5)  # another machine
    assert precisions == ["bf16", "bf16"]


def test_finetune_diverging_at_once_names_the_checkpoint(finished: Path, table: Path, tmp_path: Path) -> None:
    huge = Path(shutil.copytree(finished / "step-00000030", tmp_path / "huge"))
    (huge / "manifest.json").unlink()
    weights = load_file(huge / "model.safetensors")
    weights["albert.embeddings.word_embeddings.weight"] *= 1e30
    save_file(weights, huge / "model.safetensors", {"format": "pt"})
    with pytest.raises(DivergedError, match="step 1: the loss or gradient is not finite") as error:
        finetune(prepare("table", str(huge), str(table), OVERRIDES, "cpu"), tmp_path / "run")
    assert error.value.hint == f"the weights in {huge} may be damaged; use another checkpoint"


def test_finetune_other_inputs_are_rejected(tuned: Path, finished: Path, table: Path, tmp_path: Path) -> None:
    other_table = Path(shutil.copytree(table, tmp_path / "table"))
    with (other_table / "train.tsv").open("a") as stream:
        stream.write("luma wi wi\twi\n")
    for checkpoint, data, overrides, message in (
        (finished, other_table, OVERRIDES, "started with other data"),
        (finished / "step-00000025", table, OVERRIDES, "started with another checkpoint"),
        (finished, table, (*OVERRIDES, "optimizer.lr=1e-3"), r"optimizer\.lr: 0\.005 -> 0\.001"),
    ):
        with pytest.raises(ConfigError, match=message):
            finetune(prepare("table", str(checkpoint), str(data), overrides, "cpu"), tuned, 1)
    with pytest.raises(ConfigError, match=r"train\.seed: 1 -> 2"):
        finetune(prepare("table", str(finished), str(table), OVERRIDES, "cpu"), tuned, 2)
    assert store.read_json(tuned / "status.json")["state"] == "done"


def test_finetune_of_a_table_that_grew_reports_other_data(finished: Path, table: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(table, tmp_path / "table"))
    overrides = (*OVERRIDES, "schedule.epochs=1", "schedule.warmup_steps=0")
    finetune(prepare("table", str(finished), str(data), overrides, "cpu"), tmp_path / "run")
    with (data / "train.tsv").open("a") as stream:
        stream.write("luma wi wi\twi\n" * 40)
    with pytest.raises(ConfigError, match="was started with other data"):
        finetune(prepare("table", str(finished), str(data), overrides, "cpu"), tmp_path / "run")


def test_finetune_moved_rows_or_renamed_classes_are_rejected(finished: Path, tmp_path: Path) -> None:
    def write_table(folder: str, train_rows: int, labels: str) -> str:
        lines = [f"q{i}\tbade figo {'luma ' * (i % 3)}\t{labels[i % 2]}\n" for i in range(16)]
        (tmp_path / folder).mkdir()
        for split, part in (("train", lines[:train_rows]), ("dev", lines[train_rows:])):
            (tmp_path / folder / f"{split}.tsv").write_text(f"id\ttext\tlabel\n{''.join(part)}")
        return str(tmp_path / folder)

    overrides = (*OVERRIDES, "schedule.total_steps=4", "train.eval_every=2")
    original = write_table("original", 12, "ab")
    result = finetune(prepare("table", str(finished), original, overrides, "cpu"), tmp_path / "run")
    assert result["examples"] == {"train": 12, "dev": 4}
    for data in (write_table("moved", 8, "ab"), write_table("renamed", 12, "cd")):
        with pytest.raises(ConfigError, match="started with other data"):
            finetune(prepare("table", str(finished), data, overrides, "cpu"), tmp_path / "run")


def test_finetune_of_a_finished_run_restores_its_status(tuned: Path, prepared: PreparedTask, tmp_path: Path) -> None:
    run = Path(shutil.copytree(tuned, tmp_path / "run"))
    status = store.read_json(run / "status.json")
    store.write_json(run / "status.json", {**status, "state": "running", "exit_code": None})
    finetune(prepared, run, 1)  # as if the run was killed after it had written its result
    expected = {**status, "directory": str(run.resolve())}
    assert store.read_json(run / "status.json") == expected and status["host"] and status["command"]


def test_finetune_resumes_after_kill_9_to_the_same_weights(
    tuned: Path, command: Sequence[object], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    conditions: list[Callable[[], bool]] = [
        lambda: bool(list(out.glob("step-*"))),
        lambda: 0 < store.read_json(out / "status.json")["step"] < 15,
        lambda: bool(list(out.glob(".step-*.tmp/*"))),
        lambda: (out / "step-00000015").exists(),
        lambda: bool(list(out.glob(".publish.*.tmp/*"))),
    ]
    for condition in conditions:
        run = start(tmp_path / "log", *command, "--out", out)
        run.reaches(condition)
        assert run.kill() in (0, -9), run.printed_text()
    code, printed = albert(tmp_path / "log", *command, "--out", out)
    assert code == 0, printed
    for name in (*MODEL_FILES, "predictions.dev.jsonl", "recipe.toml"):
        assert (out / name).read_bytes() == (tuned / name).read_bytes(), name
    assert without_seconds(store.read_json(out / "results.json")) == without_seconds(
        store.read_json(tuned / "results.json")
    )
    assert not list(out.glob("step-*")) and not list(out.glob(".*.tmp"))


@needs_maps
def test_finetune_resume_on_nfs_deletes_no_mapped_file(
    command: Sequence[object], finished: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    slow = "optimizer.lr=1e-9"  # so that the first evaluation remains the best
    process = start(tmp_path / "log", *command, "-s", slow, "--out", run, run_first=partial(terminate_at_step, 11))
    assert process.wait() == 75
    renamed = emulate_nfs(monkeypatch)
    prepared = prepare("table", str(finished), str(table), (*OVERRIDES, slow), "cpu")
    finetune(prepared, run, 1)
    assert store.read_json(run / "results.json")["best_step"] == 6
    assert renamed == []


def test_finetune_resume_with_other_data_is_rejected(
    command: Sequence[object], finished: Path, table: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    process = start(tmp_path / "log", *command, "--out", run, run_first=partial(terminate_at_step, 7))
    assert process.wait() == 75
    other_table = Path(shutil.copytree(table, tmp_path / "table"))
    (other_table / "dev.tsv").write_text("text\tlabel\nluma wi\twi\nkra\tkra\n")
    with pytest.raises(ConfigError, match="was started with other data"):
        finetune(prepare("table", str(finished), str(other_table), OVERRIDES, "cpu"), run, 1)


# ---------------------------------------------------------------- initial weights


def encoder_of(model: SequenceClassifier) -> dict[str, torch.Tensor]:
    return {n: t for n, t in model.state_dict().items() if n.startswith("encoder.")}


def test_build_model_loads_or_samples_weights(prepared: PreparedTask, finished: Path, table: Path) -> None:
    stored = hub.read_checkpoint(hub.find_checkpoint(str(finished))).tensors
    first, second = (build_model(prepared, seed) for seed in (1, 2))
    assert all(torch.equal(t, stored[n]) for n, t in encoder_of(first).items())
    assert not torch.equal(first.classifier.weight, second.classifier.weight)
    overrides = (*OVERRIDES, "model.weights=random")
    random_prepared = prepare("table", str(finished), str(table), overrides, "cpu")
    name = "encoder.embeddings.word.weight"
    random_1, repeated_1, random_2 = (build_model(random_prepared, seed).state_dict()[name] for seed in (1, 1, 2))
    assert torch.equal(random_1, repeated_1)
    assert not torch.equal(random_1, random_2)
    assert not torch.equal(random_1, stored[name])


def test_build_model_initializes_overlap_heads(finished: Path, table: Path) -> None:
    stored = hub.read_checkpoint(hub.find_checkpoint(str(finished)))
    size = stored.config.head_size
    with_overlap = (*OVERRIDES, "model.overlap_heads=1")

    def query(*overrides: str) -> torch.Tensor:
        model = build_model(prepare("table", str(finished), str(table), overrides, "cpu"), 1)
        weight: torch.Tensor = model.state_dict()["encoder.attention.0.query.weight"]
        return weight

    for initial in ("pretrained", "random"):
        default = query(*OVERRIDES, f"model.weights={initial}")
        overlap = query(*with_overlap, f"model.weights={initial}")
        assert not torch.equal(default[:size], overlap[:size])
    prepared = prepare("table", str(finished), str(table), with_overlap, "cpu")
    # The intermediate task has trained the overlap heads already, so they must not be initialized again.
    after_intermediate = replace(prepared, intermediate=stored)
    assert all(torch.equal(t, stored.tensors[n]) for n, t in encoder_of(build_model(after_intermediate, 1)).items())
    with pytest.raises(ConfigError, match=r"model\.overlap_heads is 99"):
        build_model(prepare("table", str(finished), str(table), (*OVERRIDES, "model.overlap_heads=99"), "cpu"), 1)


def test_build_model_new_head_differs_from_the_checkpoint(tuned: Path, table: Path) -> None:
    from_task = build_model(prepare("table", str(tuned), str(table), OVERRIDES, "cpu"), 5)
    stored = hub.read_checkpoint(tuned).tensors
    assert all(torch.equal(t, stored[n]) for n, t in encoder_of(from_task).items())
    assert not torch.equal(from_task.classifier.weight, stored["classifier.weight"])


def test_build_model_takes_dropout_from_the_recipe(finished: Path, table: Path) -> None:
    overrides = (*OVERRIDES, "model.dropout=0.2", "model.classifier_dropout=0.3")
    shape = build_model(prepare("table", str(finished), str(table), overrides, "cpu"), 0).config
    assert (shape.hidden_dropout_prob, shape.attention_probs_dropout_prob) == (0.2, 0.2)
    assert shape.classifier_dropout_prob == 0.3


def test_prepare_task_wrong_vocabulary_is_rejected(finished: Path, table: Path, tmp_path: Path) -> None:
    directory = tmp_path / "checkpoint"
    with store.commit_directory(directory, "checkpoint") as staging:
        config = hub.read_checkpoint(hub.find_checkpoint(str(finished))).config
        model = SequenceClassifier(replace(config, vocab_size=301), 2)
        hub.write_checkpoint(model, staging, "ForSequenceClassification", ("a", "b"))
        Vocabulary.load(hub.find_checkpoint(str(finished))).copy_to(staging)
    with pytest.raises(ConfigError, match="has 300 tokens, the model 301"):
        prepare("table", str(directory), str(table), OVERRIDES, "cpu")


# ---------------------------------------------------------------- evaluation


def test_eval_score_is_the_median_of_its_runs(tuned: Path, finished: Path, table: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores"
    result = evaluate("table", str(finished), str(table), out, 3, OVERRIDES, "cpu")
    runs = [store.read_json(out / f"run-{seed}" / "results.json") for seed in range(3)]
    scores = [r["score"] for r in runs]
    assert result["median"] == statistics.median(scores) == sorted(scores)[1]
    assert result["spread"] == max(scores) - min(scores)
    assert result["scores_by_seed"] == {"0": scores[0], "1": scores[1], "2": scores[2]}
    assert (result["seeds"], result["kind"]) == ([0, 1, 2], "eval")
    assert without_seconds(runs[1]) == without_seconds(
        store.read_json(tuned / "results.json")
    )  # `albert finetune` with the same seed
    assert store.read_json(out / "results.json") == result
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*.safetensors")}
    repeated = evaluate("table", str(finished), str(table), out, 3, OVERRIDES, "cpu")
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert repeated == result
    first_two = evaluate("table", str(finished), str(table), out, 2, OVERRIDES, "cpu")
    assert first_two["median"] == statistics.median(scores[:2])


def test_eval_task_checkpoint_is_only_scored(tuned: Path, table: Path, tmp_path: Path) -> None:
    result = evaluate("table", str(tuned), str(table), tmp_path / "scores", 5, OVERRIDES, "cpu")
    trained = store.read_json(tuned / "results.json")
    assert result["scores"]["accuracy"] == pytest.approx(trained["scores"]["accuracy"], abs=1e-5)
    assert result["kind"] == "scored"
    assert not list((tmp_path / "scores").glob("**/*.safetensors"))
    scored = predictions(tmp_path / "scores" / "predictions.dev.jsonl")
    assert scored == approximate(predictions(tuned / "predictions.dev.jsonl"))


def test_eval_checkpoint_with_other_labels_is_trained(
    tuned: Path, table: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other_table = tmp_path / "table"
    other_table.mkdir()
    for name in ("train", "dev"):
        (other_table / f"{name}.tsv").write_text((table / f"{name}.tsv").read_text().replace("\tkra", "\tno"))
    result = evaluate("table", str(tuned), str(other_table), tmp_path / "scores", 1, OVERRIDES, "cpu")
    assert (result["kind"], result["labels"], result["protocol"]["steps"]) == ("eval", ["no", "wi"], 18)
    assert "was fine-tuned for table (kra, wi)" in capfd.readouterr().err


# ---------------------------------------------------------------- prediction


def test_predict_equals_the_evaluation(tuned: Path, table: Path, tmp_path: Path) -> None:
    texts = [line.split("\t")[0] for line in (table / "dev.tsv").read_text().splitlines()[1:]]
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    summary = predict_file(str(tuned), str(tmp_path / "in.txt"), tmp_path / "out.jsonl", "cpu")
    assert summary.lines == len(texts)
    expected = predictions(tuned / "predictions.dev.jsonl")
    predicted = predictions(tmp_path / "out.jsonl")
    assert [row["prediction"] for row in predicted] == [row["prediction"] for row in expected]
    for actual_row, expected_row in zip(predicted, expected, strict=True):
        assert actual_row["probabilities"] == pytest.approx(expected_row["probabilities"], abs=2e-5)


def test_finetune_regression_end_to_end(finished: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    for name, rows in (("train", 60), ("dev", 30)):
        lines = ["text\tscore"]
        for _ in range(rows):
            count = rng.randint(0, 5)
            lines.append(f"{' '.join(['wi'] * count + ['luma'] * (5 - count))}\t{count + 0.5}")
        (tmp_path / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "run"
    overrides = (*OVERRIDES, "schedule.total_steps=30")
    result = finetune(prepare("table", str(finished), str(tmp_path), overrides, "cpu"), out, 0)
    assert (result["metric"], result["labels"]) == ("pearson", [])
    assert result["score"] > 0.3
    assert hub.read_checkpoint(out).labels == ("score",)
    (tmp_path / "in.txt").write_text("wi wi wi\n")
    predict_file(str(out), str(tmp_path / "in.txt"), tmp_path / "out.jsonl", "cpu")
    assert isinstance(predictions(tmp_path / "out.jsonl")[0]["prediction"], float)
    bf16 = (*overrides, "train.precision=bf16")
    result = finetune(prepare("table", str(finished), str(tmp_path), bf16, "cpu"), tmp_path / "bf16", 0)
    bf16_rows = predictions(tmp_path / "bf16" / "predictions.dev.jsonl")
    labels = [row["label"] for row in bf16_rows]
    predicted = [row["prediction"] for row in bf16_rows]
    # The recorded score is the score of the saved predictions.
    assert np.corrcoef(labels, predicted)[0, 1] == pytest.approx(result["score"], abs=2e-5)


def write_values(folder: Path, low: float, high: float) -> Path:
    """Write a table of texts that repeat one of two words, which determines the value."""
    folder.mkdir()
    for name, rows in (("train", 80), ("dev", 40)):
        lines = ["text\tlabel"]
        for row in range(rows):
            lines.append(f"{' '.join([('kra', 'wi')[row % 2]] * (1 + row // 2 % 6))}\t{(low, high)[row % 2]}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize(("low", "high"), [(0.0015, 0.0025), (-40_000.5, -39_998.5), (1e12, 2e12)])
def test_finetune_regression_learns_values_of_any_size(
    low: float, high: float, tiny_vocabulary: Path, tmp_path: Path
) -> None:
    data = write_values(tmp_path / "data", low, high)
    encoder = untrained(tmp_path / "encoder", SHAPE, tiny_vocabulary)
    overrides = (*OVERRIDES, "table.kind=regression", "schedule.total_steps=30", "train.eval_every=30")
    finetune(prepare("table", str(encoder), str(data), overrides, "cpu"), tmp_path / "run", 0)
    dev = predictions(tmp_path / "run" / "predictions.dev.jsonl")
    for value in (low, high):
        mean = statistics.mean(row["prediction"] for row in dev if row["label"] == value)
        assert mean == pytest.approx(value, abs=0.2 * (high - low))
    (tmp_path / "in.txt").write_text("kra\nwi\n")
    predict_file(str(tmp_path / "run"), str(tmp_path / "in.txt"), tmp_path / "out.jsonl", "cpu")
    for row, value in zip(predictions(tmp_path / "out.jsonl"), (low, high), strict=True):
        assert row["prediction"] == pytest.approx(value, abs=0.3 * (high - low))


def test_finetune_regression_resumes_to_the_same_weights(finished: Path, tmp_path: Path) -> None:
    data = write_values(tmp_path / "data", 100.5, 900.5)
    prepared = prepare("table", str(finished), str(data), OVERRIDES, "cpu")
    finetune(prepared, tmp_path / "whole", 1)
    settings = [word for override in OVERRIDES for word in ("-s", override)]
    command = ["finetune", "table", "--checkpoint", finished, "--data", data, "--seed", 1, "--device", "cpu", *settings]
    run_first = partial(terminate_at_step, 11)
    assert start(tmp_path / "log", *command, "--out", tmp_path / "parts", run_first=run_first).wait() == 75
    finetune(prepared, tmp_path / "parts", 1)
    for name in ("model.safetensors", "predictions.dev.jsonl"):
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def test_build_model_continued_regression_keeps_its_head(finished: Path, tmp_path: Path) -> None:
    data = write_values(tmp_path / "data", 100.5, 900.5)
    finetune(prepare("table", str(finished), str(data), OVERRIDES, "cpu"), tmp_path / "run", 1)
    other = write_values(tmp_path / "other", 3.5, 7.5)
    continued = prepare("table", str(tmp_path / "run"), str(other), (*OVERRIDES, "model.head=checkpoint"), "cpu")
    weights = build_model(continued, 0).state_dict()
    for name, tensor in hub.read_checkpoint(tmp_path / "run").tensors.items():
        assert torch.equal(weights[name], tensor), name


def test_keep_best_equal_score_keeps_the_first() -> None:
    task = SimpleNamespace(metrics=("accuracy",))
    job: Any = SimpleNamespace(prepared=SimpleNamespace(task=task), model=torch.nn.Linear(1, 1), best={})
    state = TrainState()
    best = []
    for step, score in enumerate((0.5, 0.4, 0.7, 0.7, 0.6, 0.8), start=1):
        state.step = step
        FinetuneJob.keep_best(job, {"accuracy": score}, state)
        best.append((state.best_step, state.best_score))
    assert best == [(1, 0.5), (1, 0.5), (3, 0.7), (3, 0.7), (3, 0.7), (6, 0.8)]
