"""Vectors of texts and guesses for masks: the same as `transformers` gives from the same directory."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file

from albert_cli import store
from albert_cli.errors import CheckpointError, ConfigError, DivergedError, InputError
from albert_cli.inference.encode import Pooling, Vectors, encode_features, encode_file, load_encoder
from albert_cli.inference.fill_mask import MASK, fill_masks
from albert_cli.model import hub, loading
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import (
    BareEncoder,
    MaskedLanguageModel,
    PretrainingModel,
    QuestionAnswering,
    SequenceClassifier,
)
from albert_cli.tasks.classification import TextExample
from albert_cli.tasks.glue import GLUE
from albert_cli.text.clean import Cleaning
from albert_cli.text.sentencepiece_vocabulary import SentencePieceVocabulary
from albert_cli.text.vocabulary import Vocabulary
from tests.helpers.approximate import approximate
from tests.helpers.command import albert
from tests.helpers.hugging_face import write_modules
from tests.helpers.shapes import shake

SHAPE = ModelConfig(
    vocab_size=300, embedding_size=8, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=32, max_position_embeddings=24, initializer_range=0.3,
)  # fmt: skip
MODELS = {
    "ForPreTraining": PretrainingModel,
    "ForMaskedLM": MaskedLanguageModel,
    "ForQuestionAnswering": QuestionAnswering,
    "Model": BareEncoder,
}
SHAPES = {"ALBERT": SHAPE, "BERT": replace(SHAPE, embedding_size=16, sharing="none")}
CUSTOM_SHAPE = replace(SHAPE, sharing="attention")
LINES = ["bade figo", "", "Luma wi, krate ne!", "zo", "bade " * 40, "bade figo"]


def written(directory: Path, vocabulary: Path, architecture: str, config: ModelConfig = SHAPE) -> Path:
    """A checkpoint of random weights with a vocabulary beside it."""
    torch.manual_seed(0)
    model = MODELS[architecture](config)
    shake(model)
    with store.commit_directory(directory, "checkpoint") as staging:
        hub.write_checkpoint(model, staging, architecture)
        Vocabulary.load(vocabulary).copy_to(staging, config.max_position_embeddings)
    return directory


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory, tiny_vocabulary: Path) -> Path:
    return written(tmp_path_factory.mktemp("using") / "it", tiny_vocabulary, "ForPreTraining")


def texts(lines: list[str]) -> list[TextExample]:
    return [TextExample(line, None, None, str(i)) for i, line in enumerate(lines)]


def vectors(directory: Path, examples: list[TextExample], pooling: Pooling = "mean") -> Vectors:
    """Return the vectors that `albert encode` writes."""
    checkpoint = hub.read_checkpoint(directory)
    features = GLUE["mrpc"].encode(examples, hub.load_vocabulary(checkpoint), checkpoint.config.max_position_embeddings)
    return encode_features(load_encoder(checkpoint, pooling), features, pooling, torch.device("cpu"))


def guesses(directory: Path, text: str, top: int = 5) -> list[list[dict[str, Any]]]:
    """Return the guesses of `albert fill-mask` for a text."""
    filled: Any = asdict(fill_masks(str(directory), [text], top, "cpu"))
    masks: list[list[dict[str, Any]]] = filled["texts"][0]["masks"]
    return masks


# ---------------------------------------------------------------- vectors


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("pooling", ["mean", "cls", "pooler"])
def test_encode_vectors_equal_transformers(shape: str, pooling: Pooling, tiny_vocabulary: Path, tmp_path: Path) -> None:
    directory = written(tmp_path / "it", tiny_vocabulary, "Model", SHAPES[shape])
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory).eval()
    inputs = tokenizer(LINES, padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        outputs = model(**inputs)
    mask = inputs["attention_mask"][..., None]
    mean = (outputs.last_hidden_state * mask).sum(1) / mask.sum(1)
    wanted = {"mean": mean, "cls": outputs.last_hidden_state[:, 0], "pooler": outputs.pooler_output}[pooling].numpy()
    assert np.abs(vectors(directory, texts(LINES), pooling) - wanted).max() < 1e-5 * np.abs(wanted).max()


def test_encode_pairs_have_segments(pretrained: Path) -> None:
    examples = [TextExample("bade", "figo", None, "1"), TextExample("figo", "bade", None, "2")]
    pair, reverse, joined = vectors(pretrained, [*examples, TextExample("bade figo", None, None, "3")])
    assert not np.allclose(pair, reverse)
    assert not np.allclose(pair, joined)


def test_encode_vector_does_not_depend_on_other_lines(pretrained: Path) -> None:
    together = vectors(pretrained, texts(LINES))
    for line, vector in zip(LINES, together, strict=True):
        assert vectors(pretrained, texts([line]))[0] == pytest.approx(vector, abs=1e-5)
    assert (together[0] == together[-1]).all()


def test_encode_jsonl_and_safetensors_agree(pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    call = ["encode", pretrained, "--input", tmp_path / "in.txt"]
    printed = albert(*call).out
    ended = albert(*call, "--out", tmp_path / "out" / "v.jsonl")
    assert f"1 of {len(LINES)} lines are longer than 24 tokens and were truncated" in ended.err
    facts = json.loads(albert(*call, "--out", tmp_path / "new" / "v.safetensors", "--json").out)
    assert (facts["lines"], facts["dimensions"], facts["pooling"], facts["truncated"]) == (len(LINES), 16, "mean", 1)
    assert (tmp_path / "out" / "v.jsonl").read_text() == printed
    rows = [json.loads(line) for line in printed.splitlines()]
    assert [row["id"] for row in rows] == [str(i + 1) for i in range(len(LINES))]
    tensor = load_file(tmp_path / "new" / "v.safetensors")["vectors"]
    assert tensor.dtype == np.float32
    assert (np.array([row["vector"] for row in rows], np.float32) == tensor).all()


def test_encode_reads_json_lines_and_stdin(pretrained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [{"id": "α", "text": "bade", "text_pair": "figo"}, {"text": "zo"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    rows = [json.loads(s) for s in albert("encode", pretrained, "--input", tmp_path / "in.jsonl").out.splitlines()]
    assert [row["id"] for row in rows] == ["α", "2"]
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(b"bade\tfigo\nzo\n")))
    again = [json.loads(s) for s in albert("encode", pretrained, "--input", "-").out.splitlines()]
    assert [row["vector"] for row in again] == [row["vector"] for row in rows]


def test_encode_null_id_is_the_line_number(pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(
        '{"id": null, "text": "bade"}\n{"id": 7, "text": "zo"}\n{"id": null, "sentence": "zo"}\n'
    )
    rows = [json.loads(s) for s in albert("encode", pretrained, "--input", tmp_path / "in.jsonl").out.splitlines()]
    assert [row["id"] for row in rows] == ["1", "7", "3"]


def test_encode_reads_the_text_column_of_training(tiny_vocabulary: Path, tmp_path: Path) -> None:
    finetuned = hub.FinetunedTask("table", 1, 24, {"columns": {"text": "review"}})
    with store.commit_directory(tmp_path / "model", "task") as staging:
        hub.write_checkpoint(SequenceClassifier(SHAPE, 2), staging, "ForSequenceClassification", ("a", "b"), finetuned)
        Vocabulary.load(tiny_vocabulary).copy_to(staging, 24)
    (tmp_path / "in.csv").write_text("review,text\nbade figo,luma\n")
    (tmp_path / "in.txt").write_text("bade figo\n")
    printed = [albert("encode", tmp_path / "model", "--input", tmp_path / name).out for name in ("in.csv", "in.txt")]
    assert json.loads(printed[0])["vector"] == approximate(json.loads(printed[1])["vector"])


def test_encode_empty_file_has_no_vectors(pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("")
    for name in ("v.jsonl", "v.safetensors"):
        facts = encode_file(str(pretrained), str(tmp_path / "in.txt"), tmp_path / name, "mean", "cpu")
        assert facts.lines == 0
    assert (tmp_path / "v.jsonl").read_text() == ""
    assert load_file(tmp_path / "v.safetensors")["vectors"].shape == (0, 16)


def test_load_encoder_pooler_must_exist(tiny_vocabulary: Path, tmp_path: Path) -> None:
    for architecture in MODELS:
        directory = written(tmp_path / architecture, tiny_vocabulary, architecture)
        assert vectors(directory, texts(["bade"])).shape == (1, 16)
    custom = written(tmp_path / "own", tiny_vocabulary, "ForPreTraining", CUSTOM_SHAPE)
    assert vectors(custom, texts(["bade"]), "pooler").shape == (1, 16)
    with pytest.raises(CheckpointError, match="has no pooler"):
        vectors(tmp_path / "ForMaskedLM", texts(["bade"]), "pooler")


LEGACY_POOLING: dict[str, object] = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


@pytest.mark.parametrize(
    ("pooling", "further", "expected", "warning"),
    [
        (LEGACY_POOLING, (), "cls", None),
        ({"pooling_mode": "cls"}, ("Normalize",), "cls", None),
        ({"pooling_mode": "mean"}, ("Dense", "Normalize"), "mean", "modules Dense are left out"),
        ({"pooling_mode": ["cls", "max"]}, (), "mean", "pooling cls+max, not mean"),
    ],
)
def test_encode_follows_a_sentence_model(
    pooling: dict[str, object], further: tuple[str, ...], expected: Pooling, warning: str | None,
    pretrained: Path, tmp_path: Path,
) -> None:  # fmt: skip
    shutil.copytree(pretrained, tmp_path / "model")
    write_modules(tmp_path / "model", pooling, *further)
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    printed = albert("encode", tmp_path / "model", "--input", tmp_path / "in.txt")
    rows = [json.loads(line)["vector"] for line in printed.out.splitlines()]
    assert "longer than 12 tokens" in printed.err
    assert ("warning" in printed.err) == (warning is not None)
    assert (warning or "") in printed.err
    assert np.allclose(rows[0], vectors(pretrained, texts(LINES[:1]), expected)[0], atol=1e-5)


def test_encode_other_pooling_than_the_model_warns(pretrained: Path, tmp_path: Path) -> None:
    shutil.copytree(pretrained, tmp_path / "model")
    write_modules(tmp_path / "model", LEGACY_POOLING)
    (tmp_path / "in.txt").write_text("bade figo\n")
    call = ("encode", tmp_path / "model", "--input", tmp_path / "in.txt")
    assert "use --pooling cls" in albert(*call, "--pooling", "mean").err
    assert "warning" not in albert(*call, "--pooling", "cls").err


def cased(directory: Path, vocabulary: Path) -> Path:
    """Write a copy of a vocabulary that does not lower-case texts."""
    directory.mkdir()
    model = (vocabulary / "spiece.model").read_bytes()
    SentencePieceVocabulary(model, Cleaning(lowercase=False)).copy_to(directory)
    return directory


def test_encode_prepares_texts_of_a_sentence_model(tiny_vocabulary: Path, tmp_path: Path) -> None:
    plain = written(tmp_path / "plain", cased(tmp_path / "cased", tiny_vocabulary), "Model")
    shutil.copytree(plain, tmp_path / "it")
    write_modules(tmp_path / "it", {"pooling_mode": "mean"}, prompt="Wi: ")
    (tmp_path / "it" / "sentence_bert_config.json").write_text('{"do_lower_case": true}')  # and no limit of tokens
    values = [{"text": "BADE"}, {"text": "Zo", "text_pair": "BADE"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    printed = albert("encode", tmp_path / "it", "--input", tmp_path / "in.jsonl")
    rows = [json.loads(line)["vector"] for line in printed.out.splitlines()]
    prepared = [TextExample("wi: bade", None, None, "1"), TextExample("wi: zo", "bade", None, "2")]
    assert np.allclose(rows, vectors(plain, prepared), atol=1e-5)
    assert "'Wi: '" in printed.err and "warning" not in printed.err


@pytest.mark.parametrize("options", [{}, {"lowercase": True, "prompt": "Wi: "}])
def test_encode_equals_sentence_transformers(options: dict[str, Any], tiny_vocabulary: Path, tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    directory = written(tmp_path / "it", cased(tmp_path / "cased", tiny_vocabulary), "Model")
    write_modules(directory, {**LEGACY_POOLING, "word_embedding_dimension": 16}, **options)
    theirs = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
    theirs.save(str(tmp_path / "saved"))
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    for saved in (directory, tmp_path / "saved"):
        printed = albert("encode", saved, "--input", tmp_path / "in.txt").out
        rows = [json.loads(line)["vector"] for line in printed.splitlines()]
        assert np.allclose(rows, theirs.encode(LINES), atol=1e-5)


def test_encode_bad_line_leaves_no_file(pretrained: Path, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"bade\nfi\xffgo\n")
    for name in ("v.jsonl", "v.safetensors"):
        call = ["encode", pretrained, "--input", tmp_path / "in.txt", "--out", tmp_path / name]
        assert "in.txt:2: invalid UTF-8 at byte 7 " in albert(*call, expect=3).err
        assert sorted(p.name for p in tmp_path.iterdir()) == ["in.txt"]
        albert(*call, "--on-bad-bytes", "replace")
        (tmp_path / name).unlink()


def test_encode_wrong_options_are_rejected(pretrained: Path, tmp_path: Path) -> None:
    call = ["encode", pretrained, "--input", tmp_path / "gone.txt"]
    assert "gone.txt: no such file" in albert(*call, expect=3).err
    assert "use a name that ends in .jsonl or .safetensors" in albert(*call, "--out", tmp_path / "v.npy", expect=2).err
    assert "use --out FILE" in albert(*call, "--json", expect=2).err
    assert "is a directory" in albert(*call, "--out", tmp_path, expect=2).err


def test_encode_and_fill_mask_nan_weights_are_errors(pretrained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_into(model: torch.nn.Module, *_: object) -> None:
        torch.nn.init.constant_(next(model.parameters()), float("nan"))

    monkeypatch.setattr(loading, "load_weights", load_into)
    with pytest.raises(DivergedError, match="predictions are not finite"):
        vectors(pretrained, texts(["bade figo"]))
    with pytest.raises(DivergedError, match="predictions are not finite"):
        guesses(pretrained, f"bade {MASK}")


def test_encode_vocabulary_of_another_size_is_rejected(tiny_vocabulary: Path, tmp_path: Path) -> None:
    directory = written(tmp_path / "it", tiny_vocabulary, "Model", replace(SHAPE, vocab_size=310))
    with pytest.raises(ConfigError, match="has 300 tokens, the model 310"):
        vectors(directory, texts(["bade"]))


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("architecture", ["ForPreTraining", "ForMaskedLM"])
def test_fill_masks_equal_transformers(
    shape: str, architecture: str, tiny_vocabulary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = written(tmp_path / "it", tiny_vocabulary, architecture, SHAPES[shape])
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForMaskedLM.from_pretrained(directory).eval()
    for text in ("bade [MASK] figo.", "[MASK]", "Lu[MASK] wi, [MASK]. [MASK] zo![MASK]", "É[MASK]é ﬁ", " [MASK] \t 1,"):
        inputs = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            logits = model(**inputs).logits[0][inputs["input_ids"][0] == tokenizer.mask_token_id]
        best = logits.softmax(-1).topk(7)
        masks = guesses(directory, text, 7)
        pieces = [tokenizer.convert_ids_to_tokens(row) for row in best.indices.tolist()]
        assert [[guess["piece"] for guess in mask] for mask in masks] == pieces
        probabilities = torch.tensor([[guess["probability"] for guess in mask] for mask in masks])
        assert float((probabilities - best.values).abs().max()) < 1e-5
    assert "warning" not in capfd.readouterr().err, "no head that filling masks does not need is missed"


def test_fill_mask_prints_every_text_and_mask(pretrained: Path) -> None:
    one, two = "bade [MASK] figo", "[MASK] wi [MASK]."
    lines = albert("fill-mask", pretrained, one, two, "--top", 3).out.splitlines()
    assert (lines[0], lines[4:6], lines[9]) == (one, [two, "  [MASK] 1"], "  [MASK] 2")
    assert len(lines) == 1 + 3 + 1 + 2 * (1 + 3)
    entries = json.loads(albert("fill-mask", pretrained, one, two, "--top", 3, "--json").out)["texts"]
    assert [entry["text"] for entry in entries] == [one, two]
    assert [[len(mask) for mask in entry["masks"]] for entry in entries] == [[3], [3, 3]]
    assert all(
        a["probability"] >= b["probability"]
        for a, b in zip(entries[0]["masks"][0], entries[0]["masks"][0][1:], strict=False)
    )
    everything = json.loads(albert("fill-mask", pretrained, one, "--top", 10_000, "--json").out)["texts"][0]["masks"][0]
    assert len(everything) == 300
    probabilities = [guess["probability"] for guess in everything]
    assert probabilities == sorted(probabilities, reverse=True)
    assert sum(probabilities) == pytest.approx(1, abs=1e-5)
    assert all(guess["text"] for guess in everything)


def test_fill_mask_wrong_texts_are_rejected(pretrained: Path, tiny_vocabulary: Path, tmp_path: Path) -> None:
    assert (
        "error: no [MASK] in 'bade [mask]'\nhint: write [MASK]"
        in albert("fill-mask", pretrained, "bade [mask]", expect=3).err
    )
    assert guesses(pretrained, MASK * 22)
    with pytest.raises(InputError, match="25 tokens, the model has 24 positions"):
        guesses(pretrained, MASK * 23)
    bare = written(tmp_path / "bare", tiny_vocabulary, "Model")
    assert f"{bare}: has no masked-language head" in albert("fill-mask", bare, "[MASK]", expect=4).err
    assert albert("fill-mask", pretrained, "[MASK]", "--top", 0, expect=2).out == ""
