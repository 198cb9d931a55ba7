"""Tests of checkpoints in the format of Hugging Face: written, read, and rejected if they do not fit."""

from __future__ import annotations

import http.server
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from albert_cli import store
from albert_cli.errors import CheckpointError
from albert_cli.model import hub, loading
from albert_cli.model.config import CUSTOM_MODEL_TYPE, ModelConfig
from albert_cli.model.heads import MaskedLanguageModel, PretrainingModel, SequenceClassifier
from albert_cli.model.hf_config import config_to_json, model_type
from albert_cli.model.weight_files import WEIGHTS_FILE
from albert_cli.tasks.classification import Classification
from albert_cli.tasks.multi_label import MultiLabelClassification
from albert_cli.tasks.registry import task_from_checkpoint
from tests.helpers.hugging_face import (
    HEADS,
    assert_same_outputs,
    hf_config,
    load_with_transformers,
    read_all_into,
    read_into,
    saved,
)
from tests.helpers.processes import albert
from tests.helpers.shapes import ALBERT_ONLY_SHAPES, ALL_SHAPES, HF_SHAPES, TINY, random_batch, shake
from tests.helpers.web_server import run_handler

# ---------------------------------------------------------------- our checkpoints in transformers


def test_checkpoint_of_regression_has_one_output(tmp_path: Path) -> None:
    model = SequenceClassifier(TINY, 1)
    directory = saved(model, tmp_path / "checkpoint", "ForSequenceClassification", ("score",))
    theirs = load_with_transformers(transformers.AutoModelForSequenceClassification, directory)
    assert (theirs.config.num_labels, theirs.config.problem_type) == (1, "regression")
    assert_same_outputs(HEADS["classification"], model, theirs, random_batch((20, 3)))


def test_checkpoint_keeps_all_dropout_rates(tmp_path: Path) -> None:
    shape = replace(TINY, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.2, classifier_dropout_prob=0.3)
    for number, config in enumerate((shape, replace(shape, embedding_size=16, sharing="none"))):
        directory = saved(SequenceClassifier(config, 2), tmp_path / str(number), "ForSequenceClassification")
        theirs = transformers.AutoConfig.from_pretrained(directory)
        dropout = theirs.classifier_dropout if number else theirs.classifier_dropout_prob
        assert (theirs.hidden_dropout_prob, theirs.attention_probs_dropout_prob, dropout) == (0.1, 0.2, 0.3)
        assert hub.read_checkpoint(directory).config == config


@pytest.mark.parametrize("name", ALBERT_ONLY_SHAPES)
def test_checkpoint_without_hf_class_is_read_only_by_albert(name: str, tmp_path: Path) -> None:
    model = PretrainingModel(ALBERT_ONLY_SHAPES[name])
    shake(model)
    directory = saved(model, tmp_path / "checkpoint", "ForPreTraining")
    assert json.loads((directory / "config.json").read_text())["model_type"] == CUSTOM_MODEL_TYPE
    for auto in (transformers.AutoConfig, transformers.AutoModel, transformers.AutoModelForPreTraining):
        with pytest.raises(ValueError, match="model type `albert_cli` but Transformers does not recognize"):
            auto.from_pretrained(directory)
    assert hub.read_checkpoint(directory).config == ALBERT_ONLY_SHAPES[name]


@pytest.mark.parametrize("name", ["one group", "BERT"])
def test_checkpoint_window_over_all_positions_has_an_hf_class(name: str, tmp_path: Path) -> None:
    batch = random_batch((20, 3, 11))
    for window, expected_type in ((18, CUSTOM_MODEL_TYPE), (19, model_type(HF_SHAPES[name]))):
        config = replace(HF_SHAPES[name], attention="window", attention_window=window)
        model = HEADS["pretraining"].make(config)
        shake(model)
        directory = saved(model, tmp_path / str(window), "ForPreTraining")
        assert json.loads((directory / "config.json").read_text())["model_type"] == expected_type
        assert hub.read_checkpoint(directory).config == config
    theirs = transformers.AutoModelForPreTraining.from_pretrained(directory)
    assert_same_outputs(HEADS["pretraining"], model, theirs, batch)


# ---------------------------------------------------------------- checkpoints of transformers


@pytest.mark.parametrize("name", ["one group", "BERT"])
def test_checkpoint_of_transformers_bare_or_mlm_is_read(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = hf_config(HF_SHAPES[name])
    for auto, missing_pooler in ((transformers.AutoModel, False), (transformers.AutoModelForMaskedLM, True)):
        auto.from_config(config).save_pretrained(tmp_path)
        model = PretrainingModel(HF_SHAPES[name])
        read_into(model, tmp_path)
        new = {n.rpartition(".")[0] for n in model.state_dict().keys() - hub.read_checkpoint(tmp_path).tensors.keys()}
        assert ("encoder.pooler" in new) == missing_pooler
        assert ("has no pooler" in capfd.readouterr().err) == missing_pooler
        assert ("masked.dense" in new) == (not missing_pooler)
        assert not any(n.startswith("encoder.") and n != "encoder.pooler" for n in new)
        for policy in (loading.LoadPolicy.EVERYTHING, loading.LoadPolicy.HEADS):
            with pytest.raises(CheckpointError, match=r"is missing|has no masked-language head"):
                loading.load_weights(model, hub.read_checkpoint(tmp_path), policy)
        if missing_pooler:  # a masked-language model has all that filling masks needs
            loading.load_weights(model, hub.read_checkpoint(tmp_path), loading.LoadPolicy.MASKED_LANGUAGE)


def test_checkpoint_unused_foreign_tensors_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    transformers.AutoModelForPreTraining.from_config(hf_config(TINY)).save_pretrained(tmp_path / "theirs")
    read_into(SequenceClassifier(TINY, 2), tmp_path / "theirs")
    printed = "25 tensors matched: encoder, pooler; new: classifier; not used: masked, order"
    assert f"{tmp_path / 'theirs'}: {printed}\n" in capfd.readouterr().err
    read_into(SequenceClassifier(TINY, 2), saved(PretrainingModel(TINY), tmp_path / "ours", "ForPreTraining"))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("is_in_config", [True, False])
@pytest.mark.parametrize("name", ["one group", "BERT"])
def test_checkpoint_untied_masked_head_is_left_out(
    name: str, is_in_config: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the word embeddings instead of the head's own matrix, it would silently predict other words."""
    for auto in (transformers.AutoModelForPreTraining, transformers.AutoModelForMaskedLM):
        config = hf_config(HF_SHAPES[name])
        config.tie_word_embeddings = False
        theirs = auto.from_config(config)
        shake(theirs)
        theirs.save_pretrained(tmp_path)
        if not is_in_config:
            values = store.read_json(tmp_path / "config.json")
            store.write_json(tmp_path / "config.json", values | {"tie_word_embeddings": True})
        checkpoint = hub.read_checkpoint(tmp_path)
        assert "its decoder is not the word table" in capfd.readouterr().err
        with pytest.raises(CheckpointError, match="has no masked-language head"):
            loading.load_weights(MaskedLanguageModel(checkpoint.config), checkpoint, loading.LoadPolicy.HEADS)
        encoder = HEADS["bare"].make(checkpoint.config)
        loading.load_weights(encoder, checkpoint)
        assert torch.equal(encoder.state_dict()["encoder.embeddings.word.weight"], theirs.get_input_embeddings().weight)


def test_checkpoint_of_multi_label_task_loads_as_multi_label(tmp_path: Path) -> None:
    config = hf_config(TINY, ("a", "b", "c"))
    for problem, labels in (("single_label_classification", ("a", "b", "c")), ("multi_label_classification", ())):
        config.problem_type = problem
        transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
        checkpoint = hub.read_checkpoint(tmp_path)
        assert checkpoint.labels == labels
        assert task_from_checkpoint(checkpoint).labels == ("a", "b", "c")
        assert isinstance(task_from_checkpoint(checkpoint), Classification if labels else MultiLabelClassification)


def test_checkpoint_of_a_task_records_its_task(tmp_path: Path) -> None:
    finetuned_task = hub.FinetunedTask("cola", 1, 128)
    with store.commit_directory(tmp_path / "checkpoint", "task") as staging:
        hub.write_checkpoint(
            SequenceClassifier(TINY, 2), staging, "ForSequenceClassification", ("0", "1"), finetuned_task
        )
    assert hub.read_checkpoint(tmp_path / "checkpoint").finetuned_task == finetuned_task
    theirs = load_with_transformers(transformers.AutoModelForSequenceClassification, tmp_path / "checkpoint")
    theirs.save_pretrained(tmp_path / "theirs")
    assert hub.read_checkpoint(tmp_path / "theirs").finetuned_task == finetuned_task
    pretrained = saved(PretrainingModel(TINY), tmp_path / "pretrained", "ForPreTraining")
    assert hub.read_checkpoint(pretrained).finetuned_task is None


@pytest.mark.parametrize(
    ("auto", "labels"),
    [
        (transformers.AutoModelForSequenceClassification, 3),
        (transformers.AutoModelForTokenClassification, 2),
        (transformers.AutoModelForMultipleChoice, 2),
    ],
)
def test_checkpoint_with_a_new_head_records_no_task(auto: Any, labels: int, tmp_path: Path) -> None:
    with store.commit_directory(tmp_path / "checkpoint", "task") as staging:
        task = hub.FinetunedTask("mrpc", 2, 128)
        hub.write_checkpoint(SequenceClassifier(TINY, 2), staging, "ForSequenceClassification", ("0", "1"), task)
    theirs = auto.from_pretrained(tmp_path / "checkpoint", num_labels=labels, ignore_mismatched_sizes=True)
    theirs.save_pretrained(tmp_path / "theirs")
    checkpoint = hub.read_checkpoint(tmp_path / "theirs")
    assert "albert_task" in checkpoint.values and checkpoint.finetuned_task is None


def test_checkpoint_config_missing_keys_have_defaults() -> None:
    for config_class, name in ((transformers.AlbertConfig, "albert"), (transformers.BertConfig, "bert")):
        full = config_class().to_dict()
        assert ModelConfig.from_hf({"model_type": name}, "minimal") == ModelConfig.from_hf(full, "full")


# ---------------------------------------------------------------- round trips


@pytest.mark.parametrize("name", ALL_SHAPES)
def test_checkpoint_round_trip_is_bit_identical(name: str, tmp_path: Path) -> None:
    model = PretrainingModel(ALL_SHAPES[name])
    shake(model)
    first = saved(model, tmp_path / "first", "ForPreTraining")
    loaded = PretrainingModel(hub.read_checkpoint(first).config)
    read_all_into(loaded, first)
    for key, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[key]), key
    second = saved(loaded, tmp_path / "second", "ForPreTraining")
    for file in ("model.safetensors", "config.json"):
        assert (first / file).read_bytes() == (second / file).read_bytes()


def test_checkpoint_untrained_order_head_has_no_labels(tmp_path: Path) -> None:
    """Without `recipe.toml`, as on the Hub, only config.json tells that the head is not trained."""
    directory = saved(PretrainingModel(TINY), tmp_path / "checkpoint", "ForPreTraining")
    assert json.loads((directory / "config.json").read_text())["sentence_order_labels"] == []
    with pytest.raises(CheckpointError, match="has no classifier"):
        task_from_checkpoint(hub.read_checkpoint(directory))


def test_checkpoint_with_three_order_labels_has_no_hf_class(tmp_path: Path) -> None:
    shape = replace(TINY, order_labels=3)
    model = PretrainingModel(shape)
    hub.write_checkpoint(model, tmp_path, "ForPreTraining")
    checkpoint = hub.read_checkpoint(tmp_path)
    assert (checkpoint.values["model_type"], checkpoint.config) == (CUSTOM_MODEL_TYPE, shape)
    loading.load_weights(PretrainingModel(checkpoint.config), checkpoint, loading.LoadPolicy.EVERYTHING)
    hub.write_checkpoint(SequenceClassifier(shape, 2), tmp_path, "ForSequenceClassification", ("a", "b"))
    assert transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).config.model_type == "albert"
    assert hub.read_checkpoint(tmp_path).config == TINY


# ---------------------------------------------------------------- checkpoints that do not fit


def foreign(directory: Path, tensors: dict[str, Tensor], config: ModelConfig = TINY) -> Path:
    """Write a checkpoint without a manifest, as the Hub has."""
    directory.mkdir()
    save_file(tensors, directory / WEIGHTS_FILE)
    store.write_json(directory / "config.json", config_to_json(config, "ForPreTraining"))
    return directory


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    directory = saved(PretrainingModel(TINY), tmp_path_factory.mktemp("model") / "it", "ForPreTraining")
    return load_file(directory / WEIGHTS_FILE)


def test_checkpoint_missing_encoder_tensor_raises(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    encoder = [n for n in tensors if n.startswith("albert.") and "pooler" not in n]
    assert len(encoder) == 23
    for number, name in enumerate(encoder):
        incomplete = {n: t for n, t in tensors.items() if n != name}
        directory = foreign(tmp_path / f"{number}-missing", incomplete)
        with pytest.raises(CheckpointError, match=r"does not cover the encoder: encoder\..* is missing") as raised:
            read_into(SequenceClassifier(TINY, 2), directory)
        assert str(directory / WEIGHTS_FILE) in raised.value.message
        misshapen = tensors | {name: torch.zeros(*tensors[name].shape, 2)}
        with pytest.raises(CheckpointError, match=r"encoder\..* has shape .*2\), not"):
            read_into(SequenceClassifier(TINY, 2), foreign(tmp_path / f"{number}-shape", misshapen))


def test_checkpoint_config_of_another_shape_raises(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    for number, config in enumerate(
        (replace(TINY, hidden_size=32), replace(TINY, num_hidden_groups=3), replace(TINY, vocab_size=61))
    ):
        directory = foreign(tmp_path / str(number), tensors, config)
        with pytest.raises(CheckpointError, match="does not cover the encoder"):
            read_into(PretrainingModel(config), directory)


def test_checkpoint_with_extra_encoder_tensors_raises(tmp_path: Path) -> None:
    for number, (full_config, smaller_config) in enumerate(
        (
            (HF_SHAPES["BERT"], replace(HF_SHAPES["BERT"], num_hidden_layers=2)),
            (HF_SHAPES["as many groups as layers"], TINY),
            (
                ALBERT_ONLY_SHAPES["attention shared"],
                replace(ALBERT_ONLY_SHAPES["attention shared"], num_hidden_layers=2),
            ),
        )
    ):
        directory = saved(PretrainingModel(full_config), tmp_path / f"{number}-full", "ForPreTraining")
        smaller = foreign(tmp_path / f"{number}-smaller", load_file(directory / WEIGHTS_FILE), smaller_config)
        with pytest.raises(CheckpointError, match=r"is not a part of the encoder in config\.json"):
            read_into(PretrainingModel(smaller_config), smaller)


def test_checkpoint_classifier_of_another_head_has_no_labels(tmp_path: Path) -> None:
    config = hf_config(TINY)
    for auto in (transformers.AutoModelForMultipleChoice, transformers.AutoModelForTokenClassification):
        auto.from_config(config).save_pretrained(tmp_path)
        assert "classifier.weight" in hub.read_checkpoint(tmp_path).tensors
        assert hub.read_checkpoint(tmp_path).labels == ()


def test_checkpoint_foreign_directory_is_reported_unverified(
    tensors: dict[str, Tensor], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    read_into(PretrainingModel(TINY), foreign(tmp_path / "checkpoint", tensors))
    assert "no hashes to verify" in capfd.readouterr().err


def test_checkpoint_missing_file_is_named(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    directory = foreign(tmp_path / "checkpoint", tensors)
    (directory / WEIGHTS_FILE).unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        hub.read_checkpoint(directory)
    (directory / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: not valid JSON"):
        hub.read_checkpoint(directory)


# ---------------------------------------------------------------- paths and Hub names


def test_find_checkpoint_of_a_run_is_its_newest_complete_step(tmp_path: Path) -> None:
    for number in (5, 900, 1000):
        saved(PretrainingModel(TINY), tmp_path / "run" / f"step-{number:08d}", "ForPreTraining")
    (tmp_path / "run" / "step-00001000" / store.MANIFEST).unlink()
    (tmp_path / "run" / "step-00002000").mkdir()
    assert hub.find_checkpoint(str(tmp_path / "run")).name == "step-00000900"
    step = tmp_path / "run" / "step-00000005"
    assert hub.find_checkpoint(str(step)) == step


def test_find_checkpoint_of_a_run_killed_while_publishing(tmp_path: Path) -> None:
    run = saved(PretrainingModel(TINY), tmp_path / "run", "ForPreTraining")
    step = saved(PretrainingModel(TINY), run / "step-00000005", "ForPreTraining")
    assert hub.find_checkpoint(str(run)) == run
    (run / store.MANIFEST).unlink()  # the last file that is moved to its place
    assert hub.find_checkpoint(str(run)) == step


def test_find_checkpoint_missing_path_raises(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="contains no checkpoint"):
        hub.find_checkpoint(str(tmp_path))
    for name in (str(tmp_path / "gone"), "../gone", "a/b/c", ""):
        with pytest.raises(CheckpointError, match=r"no such directory|contains no checkpoint"):
            hub.find_checkpoint(name)


def test_find_checkpoint_deleted_step_is_not_sought_on_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    for run in ("run", "other"):
        with pytest.raises(CheckpointError, match=f"{run}/step-00000005: no such directory") as raised:
            hub.find_checkpoint(f"{run}/step-00000005")
        assert ("deletes" in str(raised.value.hint)) == (run == "run")


def test_find_checkpoint_of_an_evaluation_names_a_run(tmp_path: Path) -> None:
    (tmp_path / "run-0").mkdir()
    (tmp_path / "run-0" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="contains no checkpoint") as raised:
        hub.find_checkpoint(str(tmp_path))
    assert raised.value.hint == f"it is an evaluation; name one of its runs, such as {tmp_path / 'run-0'}"


class _Repository(http.server.BaseHTTPRequestHandler):
    """The Hub's answers for a repository with one file, in a layout that cannot be read."""

    def do_GET(self) -> None:
        commit = "0" * 40
        body: object = {"id": "someone/model", "sha": commit, "siblings": [{"rfilename": "model.gguf"}]}
        if "/tree/" in self.path:
            body = [{"type": "file", "path": "model.gguf", "size": 1, "oid": commit}]
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def test_find_checkpoint_hub_model_without_weights_has_hint(tmp_path: Path) -> None:
    """Run a command in another process, because `huggingface_hub` reads the endpoint when it is imported."""
    environment = {"HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path), "no_proxy": "127.0.0.1"}
    with run_handler(_Repository) as url:
        arguments = ("fill-mask", "someone/model", "a [MASK]")
        code, printed = albert(tmp_path / "log", *arguments, environment={"HF_ENDPOINT": url, **environment})
    assert code == 4, printed
    assert printed.endswith(
        "error: someone/model: contains a GGUF file\nhint: name the checkpoint that it was converted from\n"
    )
