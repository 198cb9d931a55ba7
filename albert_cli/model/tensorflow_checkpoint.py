"""Read Google's TensorFlow checkpoints of ALBERT (v1 and v2) and BERT; this needs the extra `tf`.

`read_config` returns the shape, and `read_tensors` the tensors by our names. `inference.convert` calls both.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from albert_cli import store
from albert_cli.errors import CheckpointError, ConfigError
from albert_cli.formatting import first_line
from albert_cli.model.config import ModelConfig

CONFIG_FILES: Final = {"albert": "albert_config.json", "bert": "bert_config.json"}

# Patterns of TensorFlow's names of variables, and our names for them. A pattern matches a whole name, or a name without
# its last part (kernel, bias, gamma or beta); `translate_name` then adds .weight or .bias to our name.
# In patterns, the group g is the number of a layer group (for BERT, of a layer), and i the number of a block in it.
# In our names, {b} is the index of the block, and {part} is query, key or value.
_ALBERT_LAYER: Final = r"bert/encoder/transformer/group_(?P<g>\d+)/inner_group_(?P<i>\d+)"
_BERT_LAYER: Final = r"bert/encoder/layer_(?P<g>\d+)"
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
_PARAMETER_NAMES: Final = {"kernel": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
# Names of variables that are not weights: step counters, and the moments of the optimizer.
_NOT_WEIGHTS: Final = re.compile(r"global_step|.*/(adam|lamb|AdamWeightDecay)[^/]*|.*_(m|v)\d*|beta[12]_power.*")


def read_config(directory: Path) -> tuple[ModelConfig, dict[str, object]]:
    """Return a checkpoint's shape, and the content of its `albert_config.json` or `bert_config.json`.

    In the content, `model_type` is added and `hidden_act` gets Hugging Face's name. Raises `CheckpointError` if both
    files are missing, or if one describes no ALBERT or BERT.
    """
    for model_type, name in CONFIG_FILES.items():
        path = directory / name
        if path.is_file():
            values = {**store.read_json(path), "model_type": model_type}
            # In ALBERT's code "gelu" is the tanh approximation, which Hugging Face calls "gelu_new".
            if model_type == "albert" and values.get("hidden_act", "gelu") == "gelu":
                values["hidden_act"] = "gelu_new"
            return ModelConfig.from_hf(values, str(path)), values
    names = " or ".join(CONFIG_FILES.values())
    raise CheckpointError(f"{directory}: a TensorFlow checkpoint without {names}", "copy this file into the directory")


def _find_prefix(directory: Path) -> Path:
    """Return the path of `model.ckpt-best`, or else of the checkpoint with the most steps, for TensorFlow's reader.

    A checkpoint consists of several files; the path is their common prefix. Raises `CheckpointError` if there is none.
    """
    indices = sorted(directory.glob("*.ckpt*.index"), key=lambda path: _recency(path.stem))
    if not indices:
        raise CheckpointError(f"{directory}: no *.ckpt*.index in it", "download all files of the checkpoint")
    return indices[-1].with_suffix("")


def _recency(name: str) -> tuple[bool, int]:
    """Return the sort key of a checkpoint's name: by ascending number of steps, and `model.ckpt-best` at the end."""
    match = re.search(r"ckpt-(\d+)$", name)
    step = 0 if match is None else int(match[1])
    return name.endswith("best"), step


def read_tensors(directory: Path, config: ModelConfig) -> dict[str, Tensor]:
    """Return the newest checkpoint's tensors in fp32, by our names.

    Raises `ConfigError` without TensorFlow, and `CheckpointError` if the files are missing or damaged.
    """
    try:
        from tensorflow.train import load_checkpoint
    except ImportError:
        raise ConfigError(
            f"{directory}: reading a TensorFlow checkpoint needs TensorFlow", "pip install 'albert-cli[tf]'"
        ) from None
    prefix = _find_prefix(directory)
    try:
        reader = load_checkpoint(str(prefix))
        names = sorted(reader.get_variable_to_shape_map())
        arrays = {name: reader.get_tensor(name) for name in names if not _NOT_WEIGHTS.fullmatch(name)}
    except Exception as error:  # TensorFlow raises errors of many types for files that it cannot read
        raise CheckpointError(f"{prefix}: cannot be read ({first_line(error)})", "download its files again") from None
    tensors = {}
    for name, array in arrays.items():
        tensor = torch.from_numpy(array.copy()).float()
        if name.endswith("/kernel"):  # [in, out] in TensorFlow, [out, in] in torch
            tensor = tensor.T.contiguous()
        tensors[translate_name(name, config)] = tensor
    return tensors


def translate_name(name: str, config: ModelConfig) -> str:
    """Return our name for a TensorFlow variable; a name that no rule matches does not change."""
    prefix, _, leaf = name.rpartition("/")
    for pattern, our_name in _RULES:
        suffix = ""
        match = re.fullmatch(pattern, name)
        if match is None and leaf in _PARAMETER_NAMES:
            suffix = f".{_PARAMETER_NAMES[leaf]}"
            match = re.fullmatch(pattern, prefix)
        if match is not None:
            groups = match.groupdict()
            block = int(groups.get("g", 0)) * config.inner_group_num + int(groups.get("i", 0))
            return our_name.format(b=block, part=groups.get("part")) + suffix
    return name
