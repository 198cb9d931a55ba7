"""Every verb works with a WordPiece BERT of transformers, and transformers reads what comes out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from albert_cli import store
from albert_cli.data.shards import TokenCorpus
from albert_cli.model import hub
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.command import albert
from tests.helpers.tokenizers import lines_of_eight_languages, train_byte_level, train_wordpiece

# "auto" would measure in every run which precision is faster.
FAST = ("--device", "cpu", "-s", "train.precision=fp32", "-s", "train.eval_sequences=8")
PAIRS = [("Die Köchin kaufte zwölf Bücher.", "Niemand öffnete das Fass."), ("Mein Großvater.", "Die Ärzte.")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bert`, a model of transformers; `data` with its vocabulary; `run`, 20 further steps of pretraining."""
    folder = tmp_path_factory.mktemp("bert")
    vocabulary = Vocabulary.load(train_wordpiece(folder / "bert"))
    torch.manual_seed(0)
    transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=vocabulary.size, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, max_position_embeddings=64,
        )
    ).save_pretrained(folder / "bert")  # fmt: skip
    lines = lines_of_eight_languages(800)
    documents = ["\n".join(lines[start : start + 10]) for start in range(0, len(lines), 10)]
    (folder / "text.txt").write_text("\n\n".join(documents), encoding="utf-8")
    albert("data", folder / "text.txt", "--vocab", folder / "bert", "--out", folder / "data", "--holdout", 0.1)
    albert(
        "pretrain", "continue", "--data", folder / "data", "--out", folder / "run", *FAST,
        "-s", f"warm_start.checkpoint={folder / 'bert'}", "-s", "schedule.total_steps=20",
        "-s", "schedule.warmup_steps=5", "-s", "train.batch_size=8", "-s", "data.max_seq_length=32",
        "-s", "optimizer.lr=1e-3",
    )  # fmt: skip
    return folder


def test_data_ids_equal_transformers(folder: Path) -> None:
    fast = transformers.AutoTokenizer.from_pretrained(folder / "bert")
    train = TokenCorpus.open(folder / "data", "train")
    ids = ",".join(map(str, train.shards[0].ids.tolist()))
    sentences = (folder / "text.txt").read_text(encoding="utf-8").replace("\n\n", "\n").split("\n")
    expected = {",".join(map(str, fast(line, add_special_tokens=False)["input_ids"])) for line in sentences}
    assert sum(line in ids for line in expected) > 0.8 * len(expected)  # a tenth is held out


def test_pretrain_continues_a_bert_and_names_new_heads(folder: Path) -> None:
    run = hub.find_checkpoint(str(folder / "run"))
    assert hub.read_checkpoint(run).config.hidden_act == "gelu"
    assert run.name == "step-00000020"
    printed = albert(
        "pretrain", "continue", "--data", folder / "data", "--out", folder / "again", *FAST,
        "-s", f"warm_start.checkpoint={folder / 'bert'}", "-s", "schedule.total_steps=1",
        "-s", "schedule.warmup_steps=0", "-s", "train.batch_size=8", "-s", "data.max_seq_length=32",
    ).err  # fmt: skip
    assert "new: order, pooler" in printed


def test_pretrain_without_model_or_checkpoint_names_the_key(folder: Path) -> None:
    printed = albert("pretrain", "continue", "--data", folder / "data", "--out", folder / "no", expect=2).err
    assert "-s warm_start.checkpoint=CHECKPOINT" in printed


def test_transformers_reads_the_continued_run(folder: Path) -> None:
    run = hub.find_checkpoint(str(folder / "run"))
    before = transformers.AutoTokenizer.from_pretrained(folder / "bert")
    after = transformers.AutoTokenizer.from_pretrained(run)
    lines = lines_of_eight_languages(800)
    assert [before(line)["input_ids"] for line in lines] == [after(line)["input_ids"] for line in lines]
    assert isinstance(transformers.AutoModelForPreTraining.from_pretrained(run), transformers.BertForPreTraining)


def test_fill_mask_equals_transformers(folder: Path) -> None:
    run = hub.find_checkpoint(str(folder / "run"))
    text = "Die Köchin [MASK] gestern."
    guesses = json.loads(albert("fill-mask", run, text, "--top", 3, "--json").out)["texts"][0]["masks"][0]
    fast = transformers.AutoTokenizer.from_pretrained(run)
    model = transformers.AutoModelForMaskedLM.from_pretrained(run).eval()
    batch = fast(text, return_tensors="pt")
    with torch.no_grad():
        logits = model(**batch).logits[0, batch["input_ids"][0].tolist().index(fast.mask_token_id)]
    best = logits.softmax(-1).topk(3)
    assert [guess["piece"] for guess in guesses] == fast.convert_ids_to_tokens(best.indices.tolist())
    assert [guess["probability"] for guess in guesses] == pytest.approx(best.values.tolist(), abs=1e-5)


def test_predict_of_a_run_gives_the_order_of_pairs(folder: Path, tmp_path: Path) -> None:
    """Class 1 means swapped, in config.json as in the logits."""
    run = hub.find_checkpoint(str(folder / "run"))
    assert store.read_json(run / "config.json")["sentence_order_labels"] == ["in order", "swapped"]
    (tmp_path / "pairs.txt").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    lines = albert("predict", folder / "run", "--input", tmp_path / "pairs.txt").out.splitlines()
    fast = transformers.AutoTokenizer.from_pretrained(run)
    model = transformers.AutoModelForPreTraining.from_pretrained(run).eval()
    for (first, second), line in zip(PAIRS, lines, strict=True):
        with torch.no_grad():
            logits = model(**fast(first, second, return_tensors="pt")).seq_relationship_logits[0]
        in_order, swapped = logits.softmax(-1).tolist()
        expected = {"in order": pytest.approx(in_order, abs=2e-5), "swapped": pytest.approx(swapped, abs=2e-5)}
        assert json.loads(line)["probabilities"] == expected
    (tmp_path / "single.txt").write_text("one text\n")
    assert "one text, but" in albert("predict", folder / "run", "--input", tmp_path / "single.txt", expect=3).err


def test_pretrain_and_finetune_name_the_padding_id(folder: Path, tmp_path: Path) -> None:
    """transformers does not train the word embedding of `pad_token_id`; token 0 is here the first one of a text."""
    vocabulary = Vocabulary.load(train_byte_level(tmp_path / "start"))
    config = transformers.AlbertConfig(
        vocab_size=vocabulary.size, embedding_size=16, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    transformers.AlbertForMaskedLM(config).save_pretrained(tmp_path / "start")
    text = folder / "text.txt"
    albert("data", text, "--vocab", tmp_path / "start", "--out", tmp_path / "data", "--holdout", 0.1)
    albert(
        "pretrain", "continue", "--data", tmp_path / "data", "--out", tmp_path / "run", *FAST,
        "-s", f"warm_start.checkpoint={tmp_path / 'start'}", "-s", "schedule.total_steps=1",
        "-s", "schedule.warmup_steps=0", "-s", "train.batch_size=8", "-s", "data.max_seq_length=32",
    )  # fmt: skip
    for split in ("train", "dev"):
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + "Fass\ta\nBuch\tb\n" * 8, encoding="utf-8")
    albert(
        "finetune", "mini/table", "--checkpoint", tmp_path / "run", "--data", tmp_path, "--out", tmp_path / "task",
        "--device", "cpu", "-s", "train.precision=fp32", "-s", "schedule.epochs=1", "-s", "data.max_seq_length=32",
    )  # fmt: skip
    for name in ("run", "task"):
        model = transformers.AutoModel.from_pretrained(hub.find_checkpoint(str(tmp_path / name)))
        assert model.get_input_embeddings().padding_idx == vocabulary.pad_id == 1


def test_finetune_predict_and_encode_equal_transformers(folder: Path, tmp_path: Path) -> None:
    lines = lines_of_eight_languages(800)[:200]
    for split, rows in (("train", lines), ("dev", lines[::5])):
        rows = [f"{line}\t{'de' if line in lines[:100] else 'ru'}" for line in rows]
        (tmp_path / f"{split}.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    albert(
        "finetune", "mini/table", "--checkpoint", folder / "run", "--data", tmp_path, "--out", tmp_path / "task",
        "--device", "cpu", "-s", "train.precision=fp32", "-s", "schedule.epochs=1", "-s", "data.max_seq_length=32",
    )  # fmt: skip
    (tmp_path / "in.txt").write_text("\n".join(lines[:20]) + "\n", encoding="utf-8")
    answers = albert("predict", tmp_path / "task", "--input", tmp_path / "in.txt").out.splitlines()
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "task")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "task").eval()
    vectors = [
        json.loads(line) for line in albert("encode", folder / "run", "--input", tmp_path / "in.txt").out.splitlines()
    ]
    bare = transformers.AutoModel.from_pretrained(hub.find_checkpoint(str(folder / "run"))).eval()
    for line, answer, vector in zip(lines, answers, vectors, strict=False):
        batch = fast(line, truncation=True, max_length=32, return_tensors="pt")
        with torch.no_grad():
            probabilities = model(**batch).logits[0].softmax(-1).tolist()
            mean = bare(**batch).last_hidden_state[0].mean(0)
        expected = {model.config.id2label[i]: pytest.approx(p, abs=2e-5) for i, p in enumerate(probabilities)}
        assert json.loads(answer)["probabilities"] == expected
        assert vector["vector"] == pytest.approx(mean.tolist(), abs=1e-5)
