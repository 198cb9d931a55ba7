"""Tests of `model.weight_files`: weights of other programs are read, or rejected with a remedy."""

from __future__ import annotations

import json
import math
import os
import re
import zipfile
from pathlib import Path

import pytest
import torch
import transformers

from albert_cli.errors import CheckpointError
from albert_cli.model import hub
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.weight_files import WEIGHTS_FILE, describe_repository
from tests.helpers.hugging_face import HEADS, assert_same_outputs, hf_config, read_into
from tests.helpers.shapes import HF_SHAPES, random_batch, shake

LAYOUTS = ("sharded safetensors", "pickled", "sharded pickled")


def save_as(model: transformers.PreTrainedModel, directory: Path, layout: str) -> None:
    """Save a model of transformers in shards, pickled, or both."""
    model.save_pretrained(directory, max_shard_size="8KB" if layout == "sharded safetensors" else "5GB")
    if layout == "sharded safetensors":
        assert len(list(directory.glob("model-*.safetensors"))) > 1
        return
    (directory / WEIGHTS_FILE).unlink()
    tensors = dict(model.state_dict())
    if layout == "pickled":
        torch.save(tensors, directory / "pytorch_model.bin")
        return
    names = sorted(tensors)
    shards = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for shard, members in shards.items():
        torch.save({name: tensors[name] for name in members}, directory / shard)
    weight_map = {name: shard for shard, members in shards.items() for name in members}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["one group", "BERT"])
def test_read_checkpoint_layout_gives_transformers_outputs(name: str, layout: str, tmp_path: Path) -> None:
    theirs = transformers.AutoModelForPreTraining.from_config(hf_config(HF_SHAPES[name])).eval()
    shake(theirs)
    save_as(theirs, tmp_path, layout)
    ours = PretrainingModel(hub.read_checkpoint(tmp_path).config)
    read_into(ours, tmp_path)
    assert_same_outputs(HEADS["pretraining"], ours, theirs, random_batch((20, 3)))


def test_read_checkpoint_missing_shard_is_named(tmp_path: Path) -> None:
    theirs = transformers.AutoModelForPreTraining.from_config(hf_config(HF_SHAPES["BERT"]))
    save_as(theirs, tmp_path, "sharded safetensors")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(CheckpointError, match=rf"{shard.name}: missing \(listed in model\.safetensors\.index\.json\)"):
        hub.read_checkpoint(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere.safetensors"}}))
    with pytest.raises(CheckpointError, match="which is not next to it"):
        hub.read_checkpoint(tmp_path)


@pytest.mark.parametrize("variant", ["under a key", "with a prefix", "decoder alone", "without model_type"])
def test_read_checkpoint_variants_give_the_same_tensors(variant: str, tmp_path: Path) -> None:
    theirs = transformers.AutoModelForPreTraining.from_config(hf_config(HF_SHAPES["BERT"]))
    save_as(theirs, tmp_path, "pickled")
    expected = hub.read_checkpoint(tmp_path).tensors
    tensors = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    if variant == "under a key":
        torch.save({"epoch": 3, "state_dict": tensors}, tmp_path / "pytorch_model.bin")
    elif variant == "with a prefix":
        torch.save({f"module.{name}": tensor for name, tensor in tensors.items()}, tmp_path / "pytorch_model.bin")
    elif variant == "decoder alone":
        del tensors["bert.embeddings.word_embeddings.weight"]
        torch.save(tensors, tmp_path / "pytorch_model.bin")
    else:
        values = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**values, "model_type": None}))
    actual = hub.read_checkpoint(tmp_path).tensors
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_read_checkpoint_quantized_weights_are_rejected(dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = transformers.AutoModelForPreTraining.from_config(hf_config(HF_SHAPES["BERT"]))
    save_as(theirs, tmp_path, "pickled")
    tensors = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    tensors["bert.pooler.dense.weight"] = tensors["bert.pooler.dense.weight"].to(dtype)
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    expected = re.escape(f"quantized: bert.pooler.dense.weight has values of {dtype}")
    with pytest.raises(CheckpointError, match=expected):
        hub.read_checkpoint(tmp_path)


@pytest.mark.parametrize("variant", ["expanded", "sparse", "meta"])
def test_read_checkpoint_values_not_in_file_are_rejected(variant: str, tmp_path: Path) -> None:
    theirs = transformers.AutoModelForPreTraining.from_config(hf_config(HF_SHAPES["BERT"]))
    save_as(theirs, tmp_path, "pickled")
    tensors = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    weight = tensors["bert.pooler.dense.weight"]
    variants = {"expanded": weight[:1, :1].clone().expand_as(weight), "sparse": weight.to_sparse()}
    tensors["bert.pooler.dense.weight"] = variants.get(variant, weight.to("meta"))
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"model\.bin: bert\.pooler\.dense\.weight is sparse, or has a shape for"):
        hub.read_checkpoint(tmp_path)


def test_read_checkpoint_compressed_archive_is_rejected(tmp_path: Path) -> None:
    theirs = transformers.AutoModelForPreTraining.from_config(hf_config(HF_SHAPES["BERT"]))
    save_as(theirs, tmp_path, "pickled")
    path = tmp_path / "pytorch_model.bin"
    torch.save(torch.load(path, weights_only=True) | {"filler": torch.zeros(1_000_000)}, path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: is compressed and expands to 4,\d{3},\d{3} bytes"):
        hub.read_checkpoint(tmp_path)


def test_read_checkpoint_quantization_config_is_rejected(tmp_path: Path) -> None:
    """With 4 bits per weight, the file is too small for the shape."""
    theirs = transformers.AutoModelForPreTraining.from_config(hf_config(HF_SHAPES["BERT"]))
    save_as(theirs, tmp_path, "pickled")
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "quantization_config": {"load_in_4bit": True}}))
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"the weights are quantized \(quantization_config in config\.json\)"):
        hub.read_checkpoint(tmp_path)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_read_checkpoint_nonfinite_weights_are_rejected(value: float, tmp_path: Path) -> None:
    theirs = transformers.AutoModelForPreTraining.from_config(hf_config(HF_SHAPES["BERT"]))
    theirs.bert.pooler.dense.weight.data[3, 5] = value
    save_as(theirs, tmp_path, "pickled")
    with pytest.raises(CheckpointError, match=r"bert\.pooler\.dense\.weight has values that are not finite"):
        hub.read_checkpoint(tmp_path)


class _Attack:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch attacked",)


def test_read_checkpoint_pickled_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    theirs = transformers.AutoModelForPreTraining.from_config(hf_config(HF_SHAPES["BERT"]))
    save_as(theirs, tmp_path, "pickled")
    size = (tmp_path / "pytorch_model.bin").stat().st_size
    torch.save({"weight": _Attack(), "filler": torch.zeros(size)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: contains more than tensors"):
        hub.read_checkpoint(tmp_path)
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize(
    ("files", "content", "remedy"),
    [
        (["model.ckpt-best.index", "model.ckpt-best.data-00000-of-00001"], "a TensorFlow checkpoint", "albert convert"),
        (["adapter_config.json", "adapter_model.safetensors"], "an adapter without its base", "merge_and_unload"),
        (["model.Q4_K_M.gguf"], "a GGUF file", "converted from"),
        (["config.json", "tf_model.h5"], "Keras weights", "from_tf"),
        (["config.json", "flax_model.msgpack"], "Flax weights", "from_flax"),
        (["config.json", "onnx/model.onnx"], "an ONNX model", "exported from"),
        (["config.json"], "no weights", "copy the weights"),
        (["saved_model.pb"], "a TensorFlow SavedModel", "model.ckpt"),
        (["notes.txt"], "no checkpoint", "name a model directory"),
    ],
)
def test_read_checkpoint_unsupported_format_raises_with_remedy(
    files: list[str], content: str, remedy: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({"model_type": "albert"}))
    with pytest.raises(CheckpointError, match=f"contains {content}") as raised:
        hub.read_checkpoint(hub.find_checkpoint(str(tmp_path)))
    assert "\n" not in raised.value.message
    assert remedy in str(raised.value.hint)


@pytest.mark.parametrize(
    ("files", "content", "remedy"),
    [
        (["base/model.ckpt-best.index"], "a TensorFlow checkpoint", "albert convert DIRECTORY"),
        (["adapter_config.json", "adapter_model.safetensors"], "an adapter without its base", "merge_and_unload"),
        (["config.json", "onnx/model.onnx"], "an ONNX model", "exported from"),
        (["config.json", "README.md"], "no weights", "another model"),
        (["model.safetensors"], "no checkpoint", "another model"),
    ],
)
def test_describe_repository_names_content_and_remedy(files: list[str], content: str, remedy: str) -> None:
    description, hint = describe_repository([".gitattributes", *files])
    assert content in description and remedy in hint


def test_find_checkpoint_file_instead_of_directory_raises(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_text("")
    with pytest.raises(CheckpointError, match=r"model\.gguf: is a GGUF file"):
        hub.find_checkpoint(str(tmp_path / "model.gguf"))
    (tmp_path / WEIGHTS_FILE).write_text("")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is a file"):
        hub.find_checkpoint(str(tmp_path / WEIGHTS_FILE))


def test_text_file_as_checkpoint_does_not_name_its_folder(tmp_path: Path) -> None:
    text = tmp_path / "ko.txt"
    text.touch()
    with pytest.raises(CheckpointError, match="is a file, not a directory") as raised:
        hub.find_checkpoint(str(text))
    assert "its folder" not in str(raised.value.hint)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="is a file, not a directory") as raised:
        hub.find_checkpoint(str(text))
    assert str(tmp_path) in str(raised.value.hint)
