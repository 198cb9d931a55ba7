"""Tests of inputs of a thousand tokens and more: more positions, sparse attention, and tasks on long texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from albert_cli import store
from albert_cli.data.batches import sample_batch
from albert_cli.data.pairs import PairSettings
from albert_cli.data.shards import TokenCorpus
from albert_cli.errors import ConfigError
from albert_cli.model import hub
from albert_cli.model.config import CUSTOM_MODEL_TYPE
from albert_cli.model.informed_init import PositionGrowth, resize_positions
from albert_cli.model.weight_files import WEIGHTS_FILE
from albert_cli.tasks.choice import ChoiceExample
from albert_cli.tasks.race import RACE
from albert_cli.tasks.squad.windows import encode_spans
from albert_cli.text.vocabulary import Vocabulary
from albert_cli.training.pretrain import pretrain
from tests.helpers.command import QUICK, albert
from tests.helpers.processes import end, start_ranks
from tests.helpers.runs import copy_run

LENGTH = 1024
SPARSE = ("model.attention=window", "model.attention_window=16")
LONGER = (f"model.max_position_embeddings={LENGTH}", f"data.max_seq_length={LENGTH}")
STEPS = ("schedule.total_steps=4", "schedule.warmup_steps=2", "train.batch_size=4", "train.micro_batch_size=2",
         "train.save_every=2", "train.eval_every=4", "train.eval_sequences=2", "train.log_every=1")  # fmt: skip
LAST = "step-00000004"


def options(*overrides: str) -> list[str]:
    return [word for override in overrides for word in ("-s", override)]


@pytest.fixture(scope="module")
def long_text(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Path:
    """Write twelve documents of several thousand tokens."""
    path = tmp_path_factory.mktemp("long") / "text.txt"
    path.write_text("\n\n".join("\n".join(documents[10 * i : 10 * i + 100]) for i in range(12)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def long_data(tmp_path_factory: pytest.TempPathFactory, long_text: Path, tiny_vocabulary: Path) -> Path:
    out = tmp_path_factory.mktemp("long-data") / "out"
    albert("data", long_text, "--vocab", tiny_vocabulary, "--out", out, "--holdout", "0.1", "--workers", "1")
    return out


@pytest.fixture(scope="module")
def long_command(recipe: Path, long_data: Path, finished: Path) -> Sequence[object]:
    """The arguments of `albert pretrain`, without --out, that extend a run to 1,024 positions and window attention."""
    overrides = options(f"warm_start.checkpoint={finished}", *LONGER, *SPARSE, *STEPS)
    return ("pretrain", recipe, "--data", long_data, "--device", "cpu", *overrides)


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory, long_command: Sequence[object]) -> Path:
    out = tmp_path_factory.mktemp("long-run") / "out"
    albert(*long_command, "--out", out)
    return out


# ---------------------------------------------------------------- data


@pytest.mark.parametrize("length", [1024, 2048, 4096, 8192])
def test_sample_batch_any_length_from_same_shards(length: int, long_data: Path, tiny_vocabulary: Path) -> None:
    corpus, vocabulary = TokenCorpus.open(long_data, "train"), Vocabulary.load(tiny_vocabulary)
    settings = PairSettings(max_seq_length=length)
    batch = sample_batch(corpus, vocabulary, settings, 0, np.arange(64))
    lengths = np.diff(batch.offsets)
    shard = corpus.shards[0]
    document_tokens = np.diff(shard.sentence_offsets[shard.document_offsets])
    longest = int(document_tokens.max()) + 3  # with [CLS] and two [SEP]
    assert lengths.max() == min(length, longest)
    assert batch.position_ids.max() == lengths.max() - 1
    assert {0, 1} <= set(batch.order_labels.tolist())
    second = np.add.reduceat(batch.segment_ids, batch.offsets[:-1])
    first = lengths - second
    assert first.max() > 256, "the first segment may be long"
    assert second.max() > 256, "the second segment may be long"


# ---------------------------------------------------------------- positions


def test_resize_positions_tiles_or_interpolates(finished: Path) -> None:
    checkpoint = hub.read_checkpoint(hub.find_checkpoint(str(finished)))
    positions = checkpoint.tensors["encoder.embeddings.position.weight"]
    assert resize_positions(checkpoint, len(positions), "tile") is checkpoint
    tiled = resize_positions(checkpoint, 100, "tile")
    table = tiled.tensors["encoder.embeddings.position.weight"]
    assert tiled.config == replace(checkpoint.config, max_position_embeddings=100)
    assert torch.equal(table, torch.stack([positions[i % len(positions)] for i in range(100)]))
    n = 2 * len(positions) - 1  # one new position between each two old ones
    stretched = resize_positions(checkpoint, n, "interpolate").tensors["encoder.embeddings.position.weight"]
    assert len(stretched) == n and torch.allclose(stretched[::2], positions, atol=1e-6)
    assert torch.allclose(stretched[1], (positions[0] + positions[1]) / 2, atol=1e-6)
    with pytest.raises(ConfigError, match=r"has 48 positions, model\.max_position_embeddings is 20"):
        resize_positions(checkpoint, 20, "tile")


@pytest.mark.parametrize("growth", ["tile", "interpolate"])
def test_warm_start_from_fewer_positions(
    growth: PositionGrowth,
    recipe: Path,
    long_data: Path,
    finished: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In the first step the learning rate is zero, so only the resizing changes the weights."""
    run = tmp_path / "run"
    overrides = [f"warm_start.checkpoint={finished}", f"warm_start.positions={growth}", *LONGER, *SPARSE, *STEPS]
    overrides += ["schedule.total_steps=1", "schedule.warmup_steps=1"]
    pretrain(str(recipe), long_data, run, overrides, device="cpu")
    assert capfd.readouterr().err.count(f"{growth}s 48 positions") == 1
    parent, actual = (hub.read_checkpoint(hub.find_checkpoint(str(directory))) for directory in (finished, run))
    expected = resize_positions(parent, LENGTH, growth)
    assert actual.config.attention == "window"
    assert actual.config.max_position_embeddings == LENGTH
    for name, tensor in expected.tensors.items():
        assert torch.equal(actual.tensors[name], tensor), name


def test_continued_run_more_positions_raise(recipe: Path, tiny_data: Path, finished: Path, tmp_path: Path) -> None:
    overrides = [f"warm_start.continues={finished}", "model.max_position_embeddings=100", "schedule.total_steps=40"]
    with pytest.raises(ConfigError, match="48 positions and 2 order labels; the recipe's model has"):
        pretrain(str(recipe), tiny_data, tmp_path / "run", overrides, device="cpu")


# ---------------------------------------------------------------- runs


def test_long_run_on_two_ranks_equals_one(long_command: Sequence[object], long_run: Path, tmp_path: Path) -> None:
    ranks = start_ranks(tmp_path / "log", 2, *long_command, "--out", tmp_path / "run")
    assert end(ranks) == [0, 0], "\n".join(r.printed_text() for r in ranks)
    expected, actual = (hub.read_checkpoint(run / LAST).tensors for run in (long_run, tmp_path / "run"))
    for name, tensor in expected.items():
        assert float((tensor - actual[name]).norm()) <= 1e-5 * float(tensor.norm()) + 1e-7, name


def test_long_run_resumes_to_same_bytes(long_command: Sequence[object], long_run: Path, tmp_path: Path) -> None:
    """The run resumes after its last checkpoint is removed; tests/campaigns/kills.py kills runs at random moments."""
    out = copy_run(long_run, tmp_path)
    store.remove_directory(out / LAST)
    albert(*long_command, "--out", out)
    for name in (WEIGHTS_FILE, "optimizer.safetensors", "config.json"):
        assert store.sha256_file(out / LAST / name) == store.sha256_file(long_run / LAST / name)


def test_long_run_is_described_with_its_attention(long_run: Path, tmp_path: Path) -> None:
    step = long_run / LAST
    values = store.read_json(step / "config.json")
    assert (values["model_type"], values["attention"]) == (CUSTOM_MODEL_TYPE, "window")
    assert "attention_block" not in values
    card = (step / "README.md").read_text()
    assert "up to 1,024 tokens, with sparse attention (16 tokens to either side; [CLS] sees all tokens)" in card
    printed = albert("inspect", step).out
    assert "window" in printed
    assert "1024" in printed
    albert("report", long_run, "--out", tmp_path / "report.html")
    assert "16 tokens to either side; [CLS] sees all tokens" in (tmp_path / "report.html").read_text(encoding="utf-8")
    window = json.loads(albert("params", step, "--json").out)["models"][0]
    full = json.loads(albert("params", f"{step}:attention=full", "--json").out)
    assert window["flops_per_token"]["forward"] < full["models"][0]["flops_per_token"]["forward"]


# ---------------------------------------------------------------- tasks


def test_finetune_longer_positions_predicts_whole_texts(long_text: Path, finished: Path, tmp_path: Path) -> None:
    texts = [document for document in long_text.read_text(encoding="utf-8").split("\n\n") if document.strip()]
    text = " ".join(" ".join(texts).split()[:700])
    rows = [json.dumps({"text": f"{text} {label}", "label": label}) + "\n" for label in ("summer", "winter") * 4]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text("".join(rows), encoding="utf-8")
    shape = options("model.max_position_embeddings=4096", "model.attention=block", "model.attention_block=32")
    arguments = ("--checkpoint", finished, "--data", tmp_path, "--out", tmp_path / "run", *QUICK)
    albert("finetune", "table", *arguments, *shape, *options("data.max_seq_length=4096"))
    checkpoint = hub.read_checkpoint(tmp_path / "run")
    assert (checkpoint.config.attention, checkpoint.config.attention_block) == ("block", 32)
    assert checkpoint.config.max_position_embeddings == 4096 and checkpoint.model_type == CUSTOM_MODEL_TYPE
    (tmp_path / "in.txt").write_text(text + "\n", encoding="utf-8")
    for verb in ("predict", "encode"):
        call = [verb, tmp_path / "run", "--input", tmp_path / "in.txt"]
        result = albert(*call, "--out", tmp_path / f"{verb}.jsonl", "--json")
        summary: dict[str, Any] = json.loads(result.out)
        assert summary["longest"] > 512
        assert summary["truncated"] == 0
        message = f"the longest input has {summary['longest']:,} tokens"
        assert message in result.err
        assert message in albert(*call).err, "without --out too"


def test_squad_reads_a_long_context_in_one_pass(
    documents: list[str], finished: Path, tiny_vocabulary: Path, tmp_path: Path
) -> None:
    context = " ".join(documents[:25])
    rows = [{"id": f"q{i}", "question": "Ba de fi?", "answers": [{"text": word, "answer_start": context.rindex(word)}]}
            for i, word in enumerate(context.split()[-4:])]  # fmt: skip
    file = {"version": "1.1", "data": [{"title": "long", "paragraphs": [{"context": context, "qas": rows}]}]}
    for split in ("train", "dev"):
        (tmp_path / f"{split}-v1.1.json").write_text(json.dumps(file), encoding="utf-8")
    shape = ("model.max_position_embeddings=4096", "model.attention=window", "model.attention_window=16",
             "model.attention_global=question", "data.max_seq_length=4096")  # fmt: skip
    albert("finetune", "squad1", "--checkpoint", finished, "--data", tmp_path, "--out", tmp_path / "run", *QUICK,
           *options(*shape, "train.batch_size=2"))  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "run" / "predictions.dev.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["q0", "q1", "q2", "q3"]
    checkpoint = hub.read_checkpoint(tmp_path / "run")
    assert checkpoint.config.attention_global == "question"
    from albert_cli.tasks.squad.task import SQUAD

    questions = SQUAD["squad1"].read("dev", str(tmp_path))
    features = encode_spans(questions, Vocabulary.load(tiny_vocabulary), 4096, SQUAD["squad1"].settings)
    assert len(features) == 4 and features.answer.min() > 512


def test_race_reads_a_long_passage_without_cutting(documents: list[str], tiny_vocabulary: Path) -> None:
    passage = " ".join(documents[:60])
    example = ChoiceExample("1", passage, "Ba de _?", ("fi", "go", "lu", "ma"), 0)
    vocabulary = Vocabulary.load(tiny_vocabulary)
    short, long = (RACE["race"].encode([example], vocabulary, n) for n in (512, 8192))
    assert (short.truncated, long.truncated) == (1, 0) and long.lengths[0] > 1000
