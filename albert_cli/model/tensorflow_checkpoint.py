"""Read Google's TensorFlow checkpoints of ALBERT (v1 and v2) and BERT; needs the extra `tf`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from albert_cli import store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.model.config import ModelConfig

CONFIG_FILES: Final = {"albert": "albert_config.json", "bert": "bert_config.json"}

# Patterns of the files' names and ours; {b} is a block's number.
_ALBERT_LAYER: Final = r"bert/encoder/transformer/group_(?P<g>\d+)/inner_group_(?P<i>\d+)"
_BERT_LAYER: Final = r"bert/encoder/layer_(?P<k>\d+)"
_RULES: Final = (
    (r"bert/embeddings/word_embeddings", "encoder.embeddings.word.weight"),
    (r"bert/embeddings/position_embeddings", "encoder.embeddings.position.weight"),
    (r"bert/embeddings/token_type_embeddings", "encoder.embeddings.segment.weight"),
    (r"bert/embeddings/LayerNorm", "encoder.embeddings.norm"),
    (r"bert/encoder/embedding_hidden_mapping_in", "encoder.projection"),
    (rf"{_ALBERT_LAYER}/attention_1/self/(?P<part>query|key|value)", "encoder.attention.{b}.{part}"),
    (rf"{_ALBERT_LAYER}/attention_1/output/dense", "encoder.attention.{b}.output"),
    (rf"{_ALBERT_LAYER}/LayerNorm", "encoder.attention.{b}.norm"),
    (rf"{_ALBERT_LAYER}/LayerNorm_1", "encoder.feed_forward.{b}.norm"),
    (rf"{_ALBERT_LAYER}/ffn_1/intermediate/dense", "encoder.feed_forward.{b}.up"),
    (rf"{_ALBERT_LAYER}/ffn_1/intermediate/output/dense", "encoder.feed_forward.{b}.down"),
    (rf"{_BERT_LAYER}/attention/self/(?P<part>query|key|value)", "encoder.attention.{b}.{part}"),
    (rf"{_BERT_LAYER}/attention/output/dense", "encoder.attention.{b}.output"),
    (rf"{_BERT_LAYER}/attention/output/LayerNorm", "encoder.attention.{b}.norm"),
    (rf"{_BERT_LAYER}/intermediate/dense", "encoder.feed_forward.{b}.up"),
    (rf"{_BERT_LAYER}/output/dense", "encoder.feed_forward.{b}.down"),
    (rf"{_BERT_LAYER}/output/LayerNorm", "encoder.feed_forward.{b}.norm"),
    (r"bert/pooler/dense", "encoder.pooler"),
    (r"cls/predictions/transform/dense", "masked.dense"),
    (r"cls/predictions/transform/LayerNorm", "masked.norm"),
    (r"cls/predictions/output_bias", "masked.bias"),
    (r"cls/seq_relationship/output_weights", "order.weight"),
    (r"cls/seq_relationship/output_bias", "order.bias"),
    (r"output_weights", "classifier.weight"),
    (r"output_bias", "classifier.bias"),
)
_LEAVES: Final = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
# Counters, and the moments of the optimizer.
_NOT_WEIGHTS: Final = re.compile(r"global_step|.*/(adam|lamb|AdamWeightDecay)[^/]*|.*_(m|v)\d*|beta[12]_power.*")


def read_config(directory: Path) -> tuple[ModelConfig, dict[str, object]]:
    """Return the shape and the content of `albert_config.json` or `bert_config.json`; raise `CheckpointError`.

    In ALBERT's code "gelu" is the tanh approximation, whose name elsewhere is "gelu_new".
    """
    for kind, name in CONFIG_FILES.items():
        path = directory / name
        if path.is_file():
            values = {**store.read_json(path), "model_type": kind}
            if kind == "albert" and values.get("hidden_act", "gelu") == "gelu":
                values["hidden_act"] = "gelu_new"
            return ModelConfig.from_hf(values, str(path)), values
    names = " or ".join(CONFIG_FILES.values())
    raise CheckpointError(f"{directory}: a TensorFlow checkpoint without {names}", "copy the file next to it")


def find_prefix(directory: Path) -> Path:
    """Return the newest checkpoint's path without its suffix; raise `CheckpointError` if there is none."""
    indices = sorted(directory.glob("*.ckpt*.index"), key=lambda path: _step_number(path.stem))
    if not indices:
        raise CheckpointError(f"{directory}: no *.ckpt*.index in it", "download all files of the checkpoint")
    return indices[-1].with_suffix("")


def _step_number(name: str) -> tuple[bool, int]:
    """Sort by number of steps, `model.ckpt-best` last."""
    number = re.search(r"ckpt-(\d+)$", name)
    return name.endswith("best"), int(number[1]) if number else 0


def read_tensors(directory: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Return the checkpoint's tensors by our names; raise `ConfigError` without TensorFlow."""
    try:
        from tensorflow.train import load_checkpoint
    except ImportError:
        raise ConfigError(
            f"{directory}: reading a TensorFlow checkpoint needs TensorFlow", "pip install 'albert-cli[tf]'"
        ) from None
    prefix = find_prefix(directory)
    try:
        reader = load_checkpoint(str(prefix))
        names = sorted(reader.get_variable_to_shape_map())
        arrays = {name: reader.get_tensor(name) for name in names if not _NOT_WEIGHTS.fullmatch(name)}
    except Exception as error:  # TensorFlow's errors share no base class with ours
        reason = str(error).split("\n")[0]
        raise CheckpointError(f"{prefix}: cannot be read ({reason})", "download its files again") from None
    return {translate_name(name, config): _to_tensor(name, array) for name, array in arrays.items()}


def _to_tensor(name: str, array: Any) -> Tensor:
    """Return a float32 tensor; kernels are [in, out] in TensorFlow and [out, in] in torch."""
    tensor = torch.from_numpy(array.copy()).float()
    return tensor.T.contiguous() if name.endswith("/kernel") else tensor


def translate_name(name: str, config: ModelConfig) -> str:
    """Return our name of a variable; unknown names do not change."""
    prefix, _, leaf = name.rpartition("/")
    for pattern, ours in _RULES:
        for candidate, suffix in ((name, ""), (prefix, f".{_LEAVES.get(leaf, leaf)}")):
            match = re.fullmatch(pattern, candidate)
            if match is None or (suffix and leaf not in _LEAVES):
                continue
            groups = match.groupdict()
            block = groups.get("k") or int(groups.get("g") or 0) * config.inner_group_num + int(groups.get("i") or 0)
            return ours.format(b=block, part=groups.get("part")) + suffix
    return name
