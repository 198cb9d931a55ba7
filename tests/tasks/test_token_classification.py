"""Named entities: files, tags, scores, and the same tokens in Hugging Face's pipeline."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import seqeval.metrics
import torch
import transformers

from albert_cli.errors import CheckpointError, ConfigError, InputError
from albert_cli.model import hub
from albert_cli.model.config import ModelConfig
from albert_cli.tasks.entities import (
    Entity,
    entities_to_tags,
    normalize_tags,
    score_entities,
    tag_labels,
    tags_to_entities,
)
from albert_cli.tasks.registry import task_from_checkpoint
from albert_cli.tasks.table_settings import TableSettings
from albert_cli.tasks.token_classification import TokenClassification, open_token_task
from albert_cli.tasks.token_data import TokenExample, find_token_files, read_token_file, split_words
from albert_cli.tasks.token_features import IGNORED
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.checkpoints import untrained
from tests.helpers.command import QUICK, albert
from tests.helpers.task_runs import SHAPE, WORDS

TAGS = ("O", "B-PER", "I-PER", "B-LOC")


def sentences(count: int = 24) -> list[tuple[list[str], list[str]]]:
    """Words and tags; `bade` is a place, `figo luma` a person."""
    rng = random.Random(0)
    made = []
    for _ in range(count):
        tokens: list[str] = []
        tags: list[str] = []
        for _ in range(rng.randint(1, 4)):
            entity = rng.choice([(["bade"], ["B-LOC"]), (["figo", "luma"], ["B-PER", "I-PER"]), (["wi"], ["O"])])
            tokens += [*entity[0], rng.choice(WORDS[3:])]
            tags += [*entity[1], "O"]
        made.append((tokens, tags))
    return made


def conll(rows: list[tuple[list[str], list[str]]], separator: str = " ") -> str:
    return "\n".join("".join(f"{t}{separator}x{separator}{g}\n" for t, g in zip(*row, strict=True)) for row in rows)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["B-PER", "I-PER", "O"], ["B-PER", "I-PER", "O"]),
        (["I-PER", "I-PER", "O", "I-LOC"], ["B-PER", "I-PER", "O", "B-LOC"]),  # IOB1, as in CoNLL 2003
        (["B-PER", "L-PER", "U-LOC", "O"], ["B-PER", "I-PER", "B-LOC", "O"]),  # BILOU
        (["B-PER", "I-PER", "L-PER", "U-PER"], ["B-PER", "I-PER", "I-PER", "B-PER"]),
        (["S-LOC", "B-PER", "E-PER"], ["B-LOC", "B-PER", "I-PER"]),  # BIOES
        (["I-PER", "I-LOC", "B-LOC"], ["B-PER", "B-LOC", "B-LOC"]),
        (["L-PER", "I-PER"], ["B-PER", "B-PER"]),
    ],
)
def test_normalize_tags_of_every_scheme(tags: list[str], expected: list[str]) -> None:
    assert list(normalize_tags(tags, "a:1")) == expected


def test_entities_and_tags_are_inverse() -> None:
    text = "Ada Lovelace met Bo in Paris."
    words = split_words(text)
    entities = [Entity(0, 12, "PER"), Entity(17, 19, "PER"), Entity(23, 28, "LOC")]
    tags = entities_to_tags(entities, words, "a:1")
    assert tags == ("B-PER", "I-PER", "O", "B-PER", "O", "B-LOC", "O")
    assert tags_to_entities(tags, words) == entities
    assert tag_labels(["PER", "LOC"]) == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    with pytest.raises(InputError, match="overlaps another"):
        entities_to_tags([Entity(0, 5, "A"), Entity(4, 12, "B")], words, "a:1")
    with pytest.raises(InputError, match="no word at characters 3 to 4"):
        entities_to_tags([Entity(3, 4, "A")], words, "a:1")


def test_read_token_file_in_every_format(tmp_path: Path) -> None:
    rows = sentences(5)
    (tmp_path / "a.conll").write_text("-DOCSTART- -X- O\n\n" + conll(rows))
    (tmp_path / "b.txt").write_text(conll(rows, "\t").replace("\n", "\r\n"))
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"tokens": t, "tags": g}) + "\n" for t, g in rows))
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"words": t, "ner_tags": g}) + "\n" for t, g in rows))
    with (tmp_path / "e.jsonl").open("w") as objects, (tmp_path / "f.jsonl").open("w") as lists:
        for example in read_token_file(tmp_path / "a.conll"):
            entities = tags_to_entities(example.tags or (), example.words)
            spans = [{"start": e.start, "end": e.end, "label": e.type} for e in entities]
            objects.write(json.dumps({"text": example.text, "entities": spans}) + "\n")
            lists.write(json.dumps({"text": example.text, "label": [list(e) for e in entities]}) + "\n")
    expected = read_token_file(tmp_path / "a.conll")
    assert [(e.text.split(" "), list(e.tags or ())) for e in expected] == rows
    for path in sorted(tmp_path.iterdir()):
        assert read_token_file(path) == expected, path


def test_read_token_file_unknown_type_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("-DOCSTART- O\n\nAda B-PER\n\nin O\nParis B-LOC\n")
    (tmp_path / "a.jsonl").write_text('\n{"tokens": ["Ada", "in", "Paris"], "tags": ["B-PER", "O", "B-LOC"]}\n')
    for name, line in (("a.conll", 6), ("a.jsonl", 2)):
        with pytest.raises(
            InputError, match=rf"{name}:{line}: the tag 'B-LOC' is of none of the model's types \(PER\)"
        ):
            read_token_file(tmp_path / name, tags=("O", "B-PER", "I-PER"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.conll", "Ada B-PER\nmet\n", r"a\.conll:2: one column"),
        ("a.conll", "Ada PER\n", r"a\.conll:1: the tag 'PER' is not O or B-TYPE"),
        ("a.conll", "# a\nAda B-PER\nmet O\nBo PER\n", r"a\.conll:4: the tag 'PER' is not O or B-TYPE"),
        ("a.conll", "Ada\tB-PER\n\tO\n", r"a\.conll:2: an empty token"),
        ("a.conll", "\n\n", r"a\.conll: holds no texts"),
        ("a.jsonl", '{"tokens": ["a"], "tags": []}\n', r"a\.jsonl:1: 1 tokens and 0 tags"),
        ("a.jsonl", '{"tokens": ["a"], "tags": [null]}\n', r"a\.jsonl:1: tokens and tags are not lists of texts"),
        ("a.jsonl", '{"text": "a", "entities": [[0, 5, "X"]]}\n', r"a\.jsonl:1: the entity .* is not within"),
        ("a.jsonl", '{"text": "a", "entities": [[0, 1, ""]]}\n', r"a\.jsonl:1: the entity .* has an empty label"),
        ("a.jsonl", '{"text": "a"}\n', r"a\.jsonl:1: no list of entities"),
        ("a.jsonl", '{"text": "a", "entities": [{"start": 0}]}\n', r"a\.jsonl:1: the entity .* has no start, end"),
    ],
)
def test_read_token_file_bad_line_is_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_token_file(tmp_path / name)


def test_read_tokens_repeated_id_of_dev_is_rejected(tmp_path: Path) -> None:
    texts = [{"id": name, "tokens": ["Bo"], "tags": ["B-PER"]} for name in ("a", None, None, "a")]
    for split in ("train", "dev"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    task = open_token_task(TableSettings(), str(tmp_path), ())
    assert [example.id for example in task.read("train")] == ["a", "2", "3", "a"]  # null is no id
    with pytest.raises(InputError, match=r"dev\.jsonl:4: the id 'a' is already used at .*dev\.jsonl:1"):
        task.read("dev")
    (tmp_path / "dev.jsonl").unlink()
    with pytest.raises(InputError, match=r"train\.jsonl:4: the id 'a' is already used"):
        open_token_task(TableSettings(), str(tmp_path), ()).read("train")


def test_read_token_file_number_sign_with_a_tag_is_a_token(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text("# text 1\n# O\nAda B-PER\n\n# 5\nBo B-PER\n# O\n")
    assert [example.text for example in read_token_file(tmp_path / "a.conll")] == ["# Ada", "Bo #"]


def test_read_token_file_number_sign_in_four_columns(tmp_path: Path) -> None:
    lines = "# text 1\n# one two three\n# NN B-NP O\nAda NNP B-NP B-PER\n\n# id 5\n# NN B-NP B-PER\nBo NNP B-NP O\n"
    (tmp_path / "a.conll").write_text(lines)
    assert [example.text for example in read_token_file(tmp_path / "a.conll")] == ["# Ada", "# Bo"]


@pytest.mark.parametrize(
    ("tags", "is_bio"),
    [
        (("O", "B-PER", "I-PER"), True),
        (("O", "I-PER"), True),
        (("O", "B-PER", "I-PER", "E-PER", "S-PER"), False),
        (("O", "PER"), False),
        (("O", "I-"), False),
        (("O", "-PER"), False),
        (("B-PER", "I-PER"), False),
        (("LABEL_0", "LABEL_1"), False),
    ],
)
def test_from_checkpoint_accepts_only_bio_tags(tags: tuple[str, ...], is_bio: bool) -> None:
    labels = {str(number): tag for number, tag in enumerate(tags)}
    values = {"architectures": ["AlbertForTokenClassification"], "id2label": labels}
    tensors = {"classifier.weight": torch.zeros(len(tags), 1), "classifier.bias": torch.zeros(len(tags))}
    checkpoint = hub.Checkpoint(Path("model"), ModelConfig(), values, "albert", tensors)
    if is_bio:
        assert task_from_checkpoint(checkpoint).labels == tags
    else:
        with pytest.raises(CheckpointError, match="its tags are not O, B-TYPE and I-TYPE") as raised:
            task_from_checkpoint(checkpoint)
        assert ("model.labels" in str(raised.value.hint)) == (tags[0] == "LABEL_0")


def test_find_token_files_two_files_of_a_split_are_rejected(tmp_path: Path) -> None:
    for name in ("train.CONLL", "val.conll", "train.txt.gz"):
        (tmp_path / name).write_text("Bo B-PER\n")
    files = {"train": str(tmp_path / "train.CONLL"), "dev": str(tmp_path / "val.conll")}
    assert find_token_files(str(tmp_path)) == files
    (tmp_path / "train.jsonl").write_text('{"tokens": ["Bo"], "tags": ["O"]}\n')
    with pytest.raises(InputError, match=r"has both train\.CONLL and train\.jsonl"):
        find_token_files(str(tmp_path))


def test_score_entities_equals_seqeval() -> None:
    rng = random.Random(1)
    for _ in range(5):
        gold = [[rng.choice(TAGS) for _ in range(rng.randint(1, 9))] for _ in range(20)]
        predicted = [[rng.choice((tag, *TAGS)) for tag in tags] for tags in gold]
        scores = score_entities(gold, predicted)
        assert scores["entity_f1"] == seqeval.metrics.f1_score(gold, predicted)
        assert scores["entity_precision"] == seqeval.metrics.precision_score(gold, predicted)
        assert scores["entity_recall"] == seqeval.metrics.recall_score(gold, predicted)
        assert scores["accuracy"] == pytest.approx(seqeval.metrics.accuracy_score(gold, predicted))


def test_score_majority_takes_the_usual_tag_of_each_word() -> None:
    task = TokenClassification(name="t", title="t", metrics=(), labels=tag_labels(["A"]))
    train = [TokenExample("a b", ((0, 1), (2, 3)), ("B-A", "O"), "0")] * 2 + [TokenExample("a", ((0, 1),), ("O",), "1")]
    dev = [TokenExample("a c b", ((0, 1), (2, 3), (4, 5)), ("B-A", "B-A", "O"), "2")]
    assert task.score_majority(train, dev) == pytest.approx(2 / 3)


def test_average_without_logits_of_the_last_words_is_outside() -> None:
    """A model whose vocabulary has no characters of the last words has no logits for them."""
    task = TokenClassification(name="t", title="t", metrics=(), labels=("O", "B-A"))
    first = [np.log(np.array([[0.9, 0.1], [0.2, 0.8]], dtype=np.float32))]
    second = [np.log(np.array([[0.7, 0.3]], dtype=np.float32))]
    for outputs in ([first, second], [second, first]):
        (logits,) = task.average(outputs)
        assert np.exp(logits) == pytest.approx(np.array([[0.8, 0.2], [0.6, 0.4]]), abs=1e-6)


def test_encode_labels_every_token(tiny_vocabulary: Path) -> None:
    vocabulary = Vocabulary.load(tiny_vocabulary)
    task = TokenClassification(name="t", title="t", metrics=(), labels=tag_labels(["A"]))
    text = "dedebade xq figoluma xq kraste"
    tag_of_word = dict(zip(split_words(text), ("B-A", "I-A", "O", "B-A", "I-A"), strict=True))
    example = TokenExample(text, tuple(tag_of_word), tuple(tag_of_word.values()), "0")
    features = task.encode([example, example], vocabulary, 96)
    packed, labels = features.batch(np.array([1, 0]))
    assert labels is not None and len(labels) == len(packed.ids)
    tokens = next(iter(vocabulary.encode_with_offsets([text])))
    expected = []
    for begin, end in zip(tokens.starts.tolist(), tokens.ends.tolist(), strict=True):
        (start, _), tag = next((word, tag) for word, tag in tag_of_word.items() if word[1] > begin)
        if end <= start:  # the blank before a word whose first letters have another token
            expected.append(tag if tag == "I-A" else "O")
        elif begin <= start:
            expected.append(tag)
        else:
            expected.append("O" if tag == "O" else "I-A")
    assert {"xq", "kra"} < {text[begin:end] for begin, end in zip(tokens.starts, tokens.ends, strict=True)}
    encoded = [IGNORED, *map(task.labels.index, expected), IGNORED]  # [CLS] and [SEP] have no label
    assert labels.tolist() == encoded * 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_vocabulary: Path) -> Path:
    """A model that was fine-tuned on entities."""
    folder = tmp_path_factory.mktemp("ner")
    (folder / "train.conll").write_text(conll(sentences(60)))
    (folder / "dev.conll").write_text(conll(sentences(12)))
    encoder = untrained(folder / "encoder", SHAPE, tiny_vocabulary)
    call: list[object] = ["finetune", "ner", "--checkpoint", encoder, "--data", folder, "--out", folder / "model"]
    call += QUICK
    for setting in ("optimizer.lr=5e-3", "schedule.total_steps=150", "train.eval_every=150", "train.batch_size=16"):
        call += ["-s", setting]
    albert(*call)
    return folder / "model"


def test_finetune_ner_learns_the_entities(model: Path) -> None:
    result = json.loads((model / "results.json").read_text())
    assert result["scores"]["entity_f1"] > 0.9, "the words decide"
    lines = [json.loads(line) for line in (model / "predictions.dev.jsonl").read_text().splitlines()]
    for line in lines:
        for entity in [*line["prediction"], *line["label"]]:
            assert line["text"][entity["start"] : entity["end"]] == entity["text"]


def test_predict_ner_table_reads_its_text(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("number,text\n1,bade wi figo\n")
    albert("predict", model, "--input", tmp_path / "in.csv", "--out", tmp_path / "out.jsonl", "--device", "cpu")
    (line,) = (tmp_path / "out.jsonl").read_text().splitlines()
    assert json.loads(line)["number"] == "1"


def test_predict_ner_parquet_null_and_number_are_texts(model: Path, tmp_path: Path) -> None:
    for texts, expected in ((["bade", None], ["bade", ""]), ([7, 8], ["7", "8"])):
        pq.write_table(pa.table({"text": texts, "number": [1, 2]}), tmp_path / "in.parquet")
        lines = albert("predict", model, "--input", tmp_path / "in.parquet", "--device", "cpu").out.splitlines()
        assert [json.loads(line)["text"] for line in lines] == expected


def test_predict_ner_equals_the_pipeline(model: Path, tmp_path: Path) -> None:
    texts = ["bade wi figo luma ne", "figo  luma kra, bade", "ne", "wi bade-bade ne"]
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    albert("predict", model, "--input", tmp_path / "in.txt", "--out", tmp_path / "out.jsonl", "--device", "cpu")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    checkpoint = hub.read_checkpoint(model)
    task = task_from_checkpoint(checkpoint)
    assert isinstance(task, TokenClassification)
    network = task.load(checkpoint).eval()
    vocabulary = hub.load_vocabulary(checkpoint)
    pipeline = transformers.pipeline(
        "token-classification", model=str(model), device="cpu", aggregation_strategy="none", ignore_labels=[]
    )
    for text, line, theirs in zip(texts, lines, pipeline(texts), strict=True):
        tokens = next(iter(vocabulary.encode_with_offsets([text])))
        by_end = {}
        for word in theirs:
            by_end[word["end"]] = (word["entity"], word["score"])
        # Each of our words has the tag and probability of its first token there.
        example = TokenExample(text, split_words(text), None, "0")
        features = task.encode([example], vocabulary, 48)
        (logits,) = task.predict(network, features, torch.device("cpu"))
        for index, tag in enumerate(task.predict_tags(example, logits)):
            position = int(np.flatnonzero(features.begun_word == index)[0])
            entity, score = by_end[int(tokens.ends[position])]
            ours = np.exp(logits[index]) / np.exp(logits[index]).sum()
            assert tag == entity and float(ours.max()) == pytest.approx(float(score), abs=1e-4)
        for entity in line["prediction"]:
            assert text[entity["start"] : entity["end"]] == entity["text"]
    assert [e["text"] for e in lines[0]["prediction"]] == ["bade", "figo luma"]


def test_pipeline_finds_whole_entities(model: Path) -> None:
    text = "bade wi figo luma ne"  # words of several tokens
    pipeline = transformers.pipeline(
        "token-classification", model=str(model), device="cpu", aggregation_strategy="simple"
    )
    entities = [(text[e["start"] : e["end"]].strip(), e["entity_group"]) for e in pipeline(text)]
    assert entities == [("bade", "LOC"), ("figo luma", "PER")]


def test_encode_has_no_label_for_a_tag_that_the_model_lacks(tiny_vocabulary: Path) -> None:
    task = TokenClassification(name="t", title="t", metrics=(), labels=("O", "B-A"))
    example = TokenExample("bade ne", ((0, 4), (5, 7)), ("B-A", "O"), "0")
    labels = task.encode([example], Vocabulary.load(tiny_vocabulary), 48).labels
    assert labels is not None and set(labels.tolist()) == {0, 1, IGNORED}


def test_eval_ner_scores_a_file_and_predicts_tokens(model: Path, tmp_path: Path) -> None:
    call = ["eval", "ner", "--checkpoint", model, "--data", model.parent / "dev.conll", "--device", "cpu"]
    result = json.loads(albert(*call, "--out", tmp_path / "scores", "--json").out)
    assert result["examples"] == {"dev": 12}
    assert "majority" not in result  # the labels of the scored file are not those of training
    assert result["scores"] == json.loads((model / "results.json").read_text())["scores"]
    albert("report", tmp_path / "scores", "--out", tmp_path / "report.html")
    (tmp_path / "in.jsonl").write_text('{"id": "q", "tokens": ["bade", "wi"]}\n{"text": "figo luma"}\n')
    albert("predict", model, "--input", tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl", "--device", "cpu")
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["id"], line["text"]) for line in lines] == [("q", "bade wi"), ("2", "figo luma")]


def test_eval_ner_model_labels_name_the_tags(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"  # the model as another program would write it: without names of tags
    other.mkdir()
    for name in ("model.safetensors", "spiece.model", "tokenizer.json", "tokenizer_config.json"):
        (other / name).write_bytes((model / name).read_bytes())
    values = json.loads((model / "config.json").read_text())
    tags = list(values.pop("id2label").values())
    del values["label2id"], values["albert_task"], values["finetuning_task"]
    (other / "config.json").write_text(json.dumps(values))
    call = ["eval", "ner", "--checkpoint", other, "--data", model.parent / "dev.conll", "--device", "cpu"]
    call += ["-s", f"model.labels={json.dumps(tags)}"]
    result = json.loads(albert(*call, "--out", tmp_path / "scores", "--json").out)
    assert result["scores"]["entity_f1"] == json.loads((model / "results.json").read_text())["scores"]["entity_f1"]


def test_read_token_file_json_ending_holds_json_lines(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('{"text": "Ann sat", "label": [[0, 3, "PER"]]}\n')
    assert find_token_files(str(tmp_path)) == {"train": str(tmp_path / "train.json")}
    assert read_token_file(tmp_path / "train.json")[0].tags == ("B-PER", "O")


def test_open_token_task_holds_out_a_tenth(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text(conll(sentences(30)))
    task = open_token_task(TableSettings(), str(tmp_path), ())
    assert len(task.read("train")) == 27 and len(task.read("dev")) == 3


@pytest.mark.parametrize("values", [{"dev": "other.conll"}, {"holdout_seed": 3}, {"labels": ("O", "B-PER")}])
def test_open_token_task_unused_setting_is_rejected(tmp_path: Path, values: dict[str, Any]) -> None:
    (tmp_path / "train.conll").write_text(conll(sentences(30)))
    with pytest.raises(ConfigError, match=f"does not use table.{next(iter(values))}"):
        open_token_task(TableSettings(**values), str(tmp_path), ())
    task = open_token_task(TableSettings(title="people", holdout=0.2), str(tmp_path), ())
    assert (task.title, len(task.read("dev"))) == ("people", 6)


def test_read_unknown_tag_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.conll").write_text(conll(sentences(30)))
    (tmp_path / "dev.conll").write_text("bade B-LOC\n\nAda O\nbade B-ORG\n")
    task = open_token_task(TableSettings(), str(tmp_path), ())
    with pytest.raises(InputError, match=r"dev\.conll:4: the tag 'B-ORG' is of none of the model's types \(LOC, PER\)"):
        task.read("dev")


def test_finetune_ner_predicts_its_test_file(model: Path, tmp_path: Path) -> None:
    columns = "bade\nwi\n\nfigo\nluma\n"
    json_lines = '{"text": "bade-wi", "tokens": ["bade", "wi"]}\n'  # offsets refer to the tokens with blanks
    for name, content in (("test.txt", columns), ("testb.tsv", columns), ("test.json", json_lines)):
        folder = tmp_path / name
        folder.mkdir()
        for split in ("train", "dev"):
            (folder / f"{split}.conll").write_text(conll(sentences(12)))
        (folder / name).write_text(content)
        call = ["finetune", "ner", "--checkpoint", model.parent / "encoder", "--data", folder, "--out", folder / "out"]
        albert(*call, *QUICK)
        lines = [json.loads(line) for line in (folder / "out" / "predictions.test.jsonl").read_text().splitlines()]
        assert [line["text"] for line in lines] == ["bade wi", "figo luma"][: len(lines)] and lines
