"""`albert convert`: weights of other layouts, with their tokenizer, become directories that everything reads."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.inference.convert import convert
from albert_cli.model import hub, tensorflow_checkpoint
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import (
    MultipleChoice,
    PretrainingModel,
    QuestionAnswering,
    SequenceClassifier,
    TokenClassifier,
)
from albert_cli.model.tensorflow_checkpoint import read_config, translate_name
from albert_cli.tasks.registry import task_from_checkpoint
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.command import albert
from tests.helpers.hugging_face import hf_config, write_modules
from tests.helpers.tokenizers import BERT_ROLES, lines_of_eight_languages, train_byte_level, train_wordpiece
from tests.helpers.vocabularies import ALBERT_OPTIONS, load_sentencepiece, train_elsewhere

ROWS = 1500


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT of transformers with its tokenizer, as `pytorch_model.bin` and `vocab.txt`."""
    directory = train_wordpiece(tmp_path_factory.mktemp("bert") / "it", ROWS)
    vocabulary = Vocabulary.load(directory)
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.txt").write_text("\n".join(vocabulary.pieces) + "\n", encoding="utf-8")
    torch.manual_seed(0)
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=vocabulary.size, hidden_size=32, num_hidden_layers=3, num_attention_heads=4,
            intermediate_size=64, max_position_embeddings=64, initializer_range=0.2,
        )
    ).eval()  # fmt: skip
    model.save_pretrained(directory)
    torch.save(dict(model.state_dict()), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()
    return directory


def test_convert_bert_keeps_ids_and_logits(bert: Path, tmp_path: Path) -> None:
    result = json.loads(albert("convert", bert, "--out", tmp_path / "out", "--json").out)
    assert (result["model_type"], result["architecture"]) == ("bert", "ForPreTraining")
    before = transformers.BertForPreTraining.from_pretrained(bert).eval()
    after = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out").eval()
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    lines = lines_of_eight_languages(80)
    assert Vocabulary.load(bert).encode_batch(lines) == [
        fast(line, add_special_tokens=False)["input_ids"] for line in lines
    ]
    batch = fast(lines, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.no_grad():
        for one, other in zip(before(**batch).to_tuple(), after(**batch).to_tuple(), strict=True):
            assert torch.allclose(one, other, atol=1e-5)


def test_convert_refuses_an_existing_directory(bert: Path, tmp_path: Path) -> None:
    assert "exists already" in albert("convert", bert, "--out", tmp_path, expect=6).err


def test_convert_removes_rows_without_a_token(bert: Path, tmp_path: Path) -> None:
    """Some programs pad the word table to a multiple of 64; the other verbs name the command."""
    shutil.copytree(bert, tmp_path / "padded")
    model = transformers.BertForPreTraining.from_pretrained(bert)
    model.resize_token_embeddings(ROWS + 36, mean_resizing=False)
    (tmp_path / "padded" / "pytorch_model.bin").unlink()
    model.save_pretrained(tmp_path / "padded")
    (tmp_path / "texts.txt").write_text("Die Brücke\n", encoding="utf-8")
    said = albert("encode", tmp_path / "padded", "--input", tmp_path / "texts.txt", expect=2).err
    assert f"albert convert {tmp_path / 'padded'} --out NEW" in said
    albert("convert", tmp_path / "padded", "--out", tmp_path / "out")
    vectors = [albert("encode", path, "--input", tmp_path / "texts.txt").out for path in (bert, tmp_path / "out")]
    assert vectors[0] == vectors[1]


@pytest.mark.parametrize("length_file", ["sentence_bert_config.json", "tokenizer_config.json"])
def test_convert_sentence_encoder_keeps_its_vectors(length_file: str, bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "model")
    write_modules(tmp_path / "model", {"pooling_mode": "cls"}, "Dense", "Normalize")
    (tmp_path / "model" / "2_Dense").mkdir()
    (tmp_path / "model" / "2_Dense" / "model.safetensors").write_bytes(b"weights")
    if length_file == "tokenizer_config.json":  # as since version 6
        (tmp_path / "model" / "sentence_bert_config.json").write_text("{}")
        (tmp_path / "model" / length_file).write_text(json.dumps({"model_max_length": 12}))
    (tmp_path / "texts.txt").write_text("\n".join(lines_of_eight_languages(80)), encoding="utf-8")
    albert("convert", tmp_path / "model", "--out", tmp_path / "out")
    encoded = [albert("encode", tmp_path / name, "--input", tmp_path / "texts.txt") for name in ("model", "out")]
    assert encoded[1].out == encoded[0].out
    assert "longer than 12 tokens" in encoded[1].err
    assert (tmp_path / "out" / "2_Dense" / "model.safetensors").read_bytes() == b"weights"
    store.verify(tmp_path / "out", "checkpoint")


def test_convert_keeps_the_rows_of_added_tokens(bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "added")
    (tmp_path / "added" / "added_tokens.json").write_text(json.dumps({"covidxyz": ROWS}))
    model = transformers.BertForPreTraining.from_pretrained(bert)
    model.resize_token_embeddings(ROWS + 1, mean_resizing=False)
    (tmp_path / "added" / "pytorch_model.bin").unlink()
    model.save_pretrained(tmp_path / "added")
    assert convert(str(tmp_path / "added"), tmp_path / "out").vocabulary == ROWS + 1
    assert Vocabulary.load(tmp_path / "out").encode("covidxyz") == [ROWS]


def test_convert_spiece_model_with_added_tokens_raises(tmp_path: Path) -> None:
    """The rows of the added tokens are trained, so they must not be removed."""
    train_elsewhere(tmp_path, 300, vocab_size=100, **ALBERT_OPTIONS)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"covidxyz": 100}))
    shape = dataclasses.replace(TINY, vocab_size=101)
    transformers.AutoModel.from_config(hf_config(shape)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="covidxyz"):
        convert(str(tmp_path), tmp_path / "out")
    assert "covidxyz" in albert("encode", tmp_path, "--input", "-", expect=4).err


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r"(.*)", r"model.\1"),  # the names of a model inside another one
        (r"bert\.encoder\.layer\.2\.output\.dense\.bias", "unknown"),
    ],
)
def test_convert_without_an_encoder_weight_raises(pattern: str, replacement: str, bert: Path, tmp_path: Path) -> None:
    shutil.copytree(bert, tmp_path / "renamed")
    weights = torch.load(bert / "pytorch_model.bin")
    renamed = {re.sub(f"^{pattern}$", replacement, name): tensor for name, tensor in weights.items()}
    torch.save(renamed, tmp_path / "renamed" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"has no encoder\.") as raised:
        convert(str(tmp_path / "renamed"), tmp_path / "out")
    assert "belong together" in str(raised.value.hint)
    assert not (tmp_path / "out").exists()


def test_convert_names_a_missing_tokenizer(bert: Path, tmp_path: Path) -> None:
    for name in ("config.json", "pytorch_model.bin"):
        (tmp_path / name).write_bytes((bert / name).read_bytes())
    with pytest.raises(CheckpointError, match=r"no spiece\.model, tokenizer\.json or vocab\.txt in it"):
        convert(str(tmp_path), tmp_path / "out")


TINY = ModelConfig(
    vocab_size=300, embedding_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=48,
)  # fmt: skip


@pytest.mark.parametrize("loss", hub.ORDER_CLASSES)
def test_convert_keeps_the_classes_of_pairs(loss: str, tiny_vocabulary: Path, tmp_path: Path) -> None:
    model = PretrainingModel(dataclasses.replace(TINY, order_labels=3 if loss == "three-way" else 2))
    with store.commit_directory(tmp_path / "run", "checkpoint") as staging:
        hub.write_checkpoint(model, staging, "ForPreTraining", order_classes=hub.ORDER_CLASSES[loss])
        Vocabulary.load(tiny_vocabulary).copy_to(staging, 48)
        (staging / "recipe.toml").write_text("")
    convert(str(tmp_path / "run"), tmp_path / "out")
    assert hub.read_checkpoint(tmp_path / "out").order_classes == hub.ORDER_CLASSES[loss]


@pytest.mark.parametrize(
    ("model", "architecture", "labels", "finetuned"),
    [
        (TokenClassifier(TINY, 2), "ForTokenClassification", ("O", "B-PER"), hub.FinetunedTask("ner", 1, 24)),
        (
            SequenceClassifier(TINY, 2), "ForSequenceClassification", ("good", "bad"),
            hub.FinetunedTask("table", 1, 24, {"columns": {"text": "review"}}),
        ),
        (
            QuestionAnswering(TINY), "ForQuestionAnswering", (),
            hub.FinetunedTask("squad2", 2, 40, {"max_query_length": 12, "threshold": -1.0}),
        ),
        (MultipleChoice(TINY, 3), "ForMultipleChoice", (), hub.FinetunedTask("race", 2, 40)),
    ],
)  # fmt: skip
def test_convert_keeps_task_and_labels(
    model: torch.nn.Module, architecture: str, labels: tuple[str, ...], finetuned: hub.FinetunedTask,
    tiny_vocabulary: Path, tmp_path: Path,
) -> None:  # fmt: skip
    with store.commit_directory(tmp_path / "run", "task") as staging:
        hub.write_checkpoint(model, staging, architecture, labels, finetuned)
        Vocabulary.load(tiny_vocabulary).copy_to(staging, 48)
    convert(str(tmp_path / "run"), tmp_path / "out")
    before, after = (store.read_json(tmp_path / name / "config.json") for name in ("run", "out"))
    assert after == before


def test_convert_keeps_a_regression_of_several_values(bert: Path, tmp_path: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(bert, num_labels=3, problem_type="regression")
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "values")
    shutil.copy(bert / "vocab.txt", tmp_path / "values")
    convert(str(tmp_path / "values"), tmp_path / "out")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "out").problem_type == "regression"
    with pytest.raises(CheckpointError, match="predicts 3 values"):
        task_from_checkpoint(hub.read_checkpoint(tmp_path / "out"))


def test_convert_names_the_padding_id_of_the_tokenizer(tmp_path: Path) -> None:
    vocabulary = Vocabulary.load(train_byte_level(tmp_path / "source"))
    shape = dataclasses.replace(TINY, vocab_size=vocabulary.size)
    transformers.AutoModel.from_config(hf_config(shape)).save_pretrained(tmp_path / "source")
    convert(str(tmp_path / "source"), tmp_path / "out")
    model = transformers.AutoModel.from_pretrained(tmp_path / "out")
    assert model.get_input_embeddings().padding_idx == vocabulary.pad_id == 1


def test_convert_untied_masked_head_names_the_encoder(bert: Path, tmp_path: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(bert)
    config.tie_word_embeddings = False
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "untied")
    shutil.copy(bert / "vocab.txt", tmp_path / "untied")
    assert convert(str(tmp_path / "untied"), tmp_path / "out").architecture == "Model"


# ---------------------------------------------------------------- TensorFlow

SHAPE = {
    "vocab_size": ROWS, "embedding_size": 16, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64, "type_vocab_size": 2, "num_hidden_groups": 1,
    "inner_group_num": 1, "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
}  # fmt: skip


def published_name(name: str, kind: str) -> str:
    """Return Google's name of a parameter of transformers' ALBERT or BERT."""
    ours = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    theirs = "bert.encoder.transformer/group_0/inner_group_0"
    replacements = {
        "albert": (
            (f"{ours}.full_layer_layer_norm", f"{theirs}.LayerNorm_1"),
            (f"{ours}.attention.LayerNorm", f"{theirs}.LayerNorm"),
            (f"{ours}.attention.dense", f"{theirs}.attention_1.output.dense"),
            (f"{ours}.attention", f"{theirs}.attention_1.self"),
            (f"{ours}.ffn_output", f"{theirs}.ffn_1.intermediate.output.dense"),
            (f"{ours}.ffn", f"{theirs}.ffn_1.intermediate.dense"),
            ("albert.pooler", "bert.pooler.dense"),
            ("albert.", "bert."),
            ("predictions.bias", "cls.predictions.output_bias"),
            ("predictions.dense", "cls.predictions.transform.dense"),
            ("predictions.LayerNorm", "cls.predictions.transform.LayerNorm"),
            ("sop_classifier.classifier.weight", "cls.seq_relationship.output_weights"),
            ("sop_classifier.classifier.bias", "cls.seq_relationship.output_bias"),
        ),
        "bert": (
            ("bert.encoder.layer.", "bert.encoder.layer_"),
            ("cls.predictions.bias", "cls.predictions.output_bias"),
            ("cls.seq_relationship.weight", "cls.seq_relationship.output_weights"),
            ("cls.seq_relationship.bias", "cls.seq_relationship.output_bias"),
        ),
    }[kind]  # fmt: skip
    for old, new in replacements:
        if name.startswith(old):
            name = name.replace(old, new)
            break
    parts = name.split(".")
    is_table = parts[-2].endswith("_embeddings")
    if parts[-2] == "LayerNorm" or parts[-2] == "LayerNorm_1":
        parts[-1] = {"weight": "gamma", "bias": "beta"}[parts[-1]]
    elif is_table:
        parts.pop()
    elif parts[-1] == "weight":
        parts[-1] = "kernel"
    return "/".join(parts)


def published_tensors(model: Any, kind: str) -> dict[str, Any]:
    """Return a model's parameters with the names and shapes of Google's checkpoints."""
    variables: dict[str, Any] = {}
    for name, tensor in model.state_dict().items():
        if "decoder" in name or "position_ids" in name:
            continue
        published = published_name(name, kind)
        array = tensor.numpy()
        variables[published] = array.T if published.endswith("/kernel") else array
    return variables


@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_translate_name_covers_every_published_variable(kind: str) -> None:
    config, model = tensorflow_model(kind)
    shape = ModelConfig.from_hf({**config, "model_type": kind}, "it")
    translated = {translate_name(name, shape) for name in published_tensors(model, kind)}
    assert translated == set(PretrainingModel(shape).state_dict())


def tensorflow_model(kind: str) -> tuple[dict[str, Any], Any]:
    """Return the content of Google's configuration, and a model of transformers of this shape."""
    torch.manual_seed(0)
    if kind == "albert":
        # The "gelu" of ALBERT's own code is the tanh approximation.
        model: Any = transformers.AlbertForPreTraining(transformers.AlbertConfig(**{**SHAPE, "hidden_act": "gelu_new"}))
        return SHAPE, model.eval()
    shape = {
        key: value
        for key, value in SHAPE.items()
        if key not in ("embedding_size", "num_hidden_groups", "inner_group_num")
    }
    return shape, transformers.BertForPreTraining(transformers.BertConfig(**shape)).eval()


@pytest.mark.parametrize(("kind", "expected"), [("albert", "gelu_new"), ("bert", "gelu")])
def test_read_config_names_the_activation_of_the_release(kind: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / f"{kind}_config.json").write_text(json.dumps(SHAPE))
    config, _ = read_config(tmp_path)
    assert config.hidden_act == expected


def write_release(
    directory: Path, kind: str, vocabulary_size: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Write the files of a TensorFlow checkpoint around its vocabulary; reading its tensors is replaced.

    options: the content of `tokenizer_config.json`, which most releases lack.
    """
    config, _ = tensorflow_model(kind)
    (directory / f"{kind}_config.json").write_text(json.dumps(config | {"vocab_size": vocabulary_size}))
    (directory / "model.ckpt-1.index").touch()
    if options:
        (directory / "tokenizer_config.json").write_text(json.dumps(options))
    shape, _ = read_config(directory)
    weights = PretrainingModel(shape).state_dict()
    monkeypatch.setattr(tensorflow_checkpoint, "read_tensors", lambda *_: weights)


@pytest.mark.parametrize(
    ("kind", "name", "piece", "options", "expected"),
    [
        ("bert", "vocab.txt", "Paris", {}, "Paris"),  # only the name of an archive says that its model is cased
        ("bert", "vocab.txt", "Paris", {"do_lower_case": True}, "paris"),
        ("bert", "vocab.txt", "<S>", {}, "paris"),  # markup in Google's uncased Chinese vocabulary
        ("bert", "vocab.txt", "ℝ", {}, "paris"),  # a sign, not a letter in upper case: it has no lower case
        ("albert", "vocab_chinese.txt", "<S>", {}, "paris"),
        ("albert", "vocab_chinese.txt", "Paris", {}, "Paris"),
    ],
)
def test_convert_cased_tensorflow_model_keeps_case(
    kind: str, name: str, piece: str, options: dict[str, Any], expected: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pieces = [*BERT_ROLES.values(), "[unused0]", "paris", piece]
    (tmp_path / name).write_text("\n".join(pieces) + "\n", encoding="utf-8")
    write_release(tmp_path, kind, len(pieces), options, monkeypatch)
    convert(str(tmp_path), tmp_path / "out")
    vocabulary = Vocabulary.load(tmp_path / "out")
    assert [vocabulary.pieces[index] for index in vocabulary.encode("Paris")] == [expected]
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert fast.tokenize("Paris") == [expected]


@pytest.mark.parametrize(
    ("pieces", "options", "expected"),
    [
        (["Ré"], {}, "Ré"),
        (["Ré"], {"do_lower_case": True}, "ré"),
        (["Ré"], {"keep_accents": False, "model_max_length": 64}, "Re"),
        (["Re"], {}, "Re"),
        (["ré"], {}, "ré"),
        ([], {}, "re"),
        ([], {"do_lower_case": False, "keep_accents": True}, "Ré"),
    ],
)
def test_convert_cased_tensorflow_albert_keeps_case(
    pieces: list[str], options: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_elsewhere(tmp_path, 300, vocab_size=100 + len(pieces), user_defined_symbols=pieces, **ALBERT_OPTIONS)
    (tmp_path / "spiece.model").rename(tmp_path / "30k-clean.model")
    write_release(tmp_path, "albert", 100 + len(pieces), options, monkeypatch)
    convert(str(tmp_path), tmp_path / "out")
    vocabulary = load_sentencepiece(tmp_path / "out")
    assert vocabulary.normalize("Ré") == expected
    assert vocabulary.cleaning.transformers_rules is False


def test_convert_tensorflow_without_vocabulary_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_release(tmp_path, "albert", ROWS, {}, monkeypatch)
    monkeypatch.setattr(tensorflow_checkpoint, "read_tensors", None)  # the vocabulary is read first: that is fast
    with pytest.raises(CheckpointError, match=r"no spiece\.model"):
        convert(str(tmp_path), tmp_path / "out")


@pytest.mark.parametrize("kind", ["albert", "bert"])
def test_convert_tensorflow_keeps_hidden_states(kind: str, tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow")
    config, model = tensorflow_model(kind)
    source = train_wordpiece(tmp_path / "tf", ROWS)
    (source / f"{kind}_config.json").write_text(json.dumps(config))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, array in published_tensors(model, kind).items():
            tf.compat.v1.get_variable(name, initializer=np.ascontiguousarray(array))
            tf.compat.v1.get_variable(f"{name}/adam_m", initializer=np.zeros_like(array))
        tf.compat.v1.get_variable("global_step", initializer=np.int64(125000))
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(source / "model.ckpt-best"), write_meta_graph=False)
    assert "a TensorFlow checkpoint" in albert("encode", source, "--input", "-", expect=4).err
    result = convert(str(source), tmp_path / "out")
    assert (result.model_type, result.architecture) == (kind, "ForPreTraining")
    ours = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "out").eval()
    ids = torch.randint(5, ROWS, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for one, other in zip(
            ours(ids, output_hidden_states=True).to_tuple(),
            model(ids, output_hidden_states=True).to_tuple(),
            strict=True,
        ):
            pairs = zip(one, other, strict=True) if isinstance(one, tuple) else [(one, other)]
            assert all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)
    assert hub.read_checkpoint(tmp_path / "out").config.vocab_size == ROWS
