"""Translate the names of weights between ours (`encoder.attention.0.query.weight`) and Hugging Face's.

The tables below map prefixes of names. The last part of a name, `weight` or `bias`, is the same on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from albert_cli.model.config import CUSTOM_MODEL_TYPE, ModelConfig

# Hugging Face's prefix for each prefix of our names, in ALBERT's files and in BERT's. {k} is the index of a set of
# weights (`ModelConfig.blocks`), {g} its group, {i} its index in the group.
_LAYER = "albert.encoder.albert_layer_groups.{g}.albert_layers.{i}"
_ALBERT = {
    "encoder.embeddings.word": "albert.embeddings.word_embeddings",
    "encoder.embeddings.position": "albert.embeddings.position_embeddings",
    "encoder.embeddings.segment": "albert.embeddings.token_type_embeddings",
    "encoder.embeddings.norm": "albert.embeddings.LayerNorm",
    "encoder.projection": "albert.encoder.embedding_hidden_mapping_in",
    "encoder.attention.{k}.query": f"{_LAYER}.attention.query",
    "encoder.attention.{k}.key": f"{_LAYER}.attention.key",
    "encoder.attention.{k}.value": f"{_LAYER}.attention.value",
    "encoder.attention.{k}.output": f"{_LAYER}.attention.dense",
    "encoder.attention.{k}.norm": f"{_LAYER}.attention.LayerNorm",
    "encoder.feed_forward.{k}.up": f"{_LAYER}.ffn",
    "encoder.feed_forward.{k}.down": f"{_LAYER}.ffn_output",
    "encoder.feed_forward.{k}.norm": f"{_LAYER}.full_layer_layer_norm",
    "encoder.pooler": "albert.pooler",
    "masked.dense": "predictions.dense",
    "masked.norm": "predictions.LayerNorm",
    "masked.bias": "predictions.bias",
    "order": "sop_classifier.classifier",
    "classifier": "classifier",
    "span": "qa_outputs",
}
_BERT = {
    **{our: hf.replace("albert", "bert") for our, hf in _ALBERT.items() if ".embeddings." in our},
    "encoder.attention.{k}.query": "bert.encoder.layer.{k}.attention.self.query",
    "encoder.attention.{k}.key": "bert.encoder.layer.{k}.attention.self.key",
    "encoder.attention.{k}.value": "bert.encoder.layer.{k}.attention.self.value",
    "encoder.attention.{k}.output": "bert.encoder.layer.{k}.attention.output.dense",
    "encoder.attention.{k}.norm": "bert.encoder.layer.{k}.attention.output.LayerNorm",
    "encoder.feed_forward.{k}.up": "bert.encoder.layer.{k}.intermediate.dense",
    "encoder.feed_forward.{k}.down": "bert.encoder.layer.{k}.output.dense",
    "encoder.feed_forward.{k}.norm": "bert.encoder.layer.{k}.output.LayerNorm",
    "encoder.pooler": "bert.pooler.dense",
    "masked.dense": "cls.predictions.transform.dense",
    "masked.norm": "cls.predictions.transform.LayerNorm",
    "masked.bias": "cls.predictions.bias",
    "order": "cls.seq_relationship",
    "classifier": "classifier",
    "span": "qa_outputs",
}
# LayerNorm's parameters in old files.
_LEGACY_PARAMETER_NAMES = {"gamma": "weight", "beta": "bias"}
# Tensors that other programs save although they follow from the other tensors: the decoder, which is tied to the word
# table, and a buffer with the numbers of the positions.
_DERIVED_TENSORS = re.compile(r"(predictions\.decoder\.(weight|bias)|embeddings\.position_ids)$")


def to_hf_names(tensors: Mapping[str, Tensor], config: ModelConfig, model_type: str) -> dict[str, Tensor]:
    """Rename tensors from our names to the names of a `model_type`; for our own type, the names do not change."""
    prefixes = _prefix_map(config, model_type)
    return {_translate_name(name, prefixes): tensor for name, tensor in tensors.items()}


def from_hf_names(tensors: Mapping[str, Tensor], config: ModelConfig, model_type: str) -> dict[str, Tensor]:
    """Rename a file's tensors to our names, and leave out tensors that follow from other tensors.

    The names in the file of a bare encoder lack the prefix `albert.` or `bert.`, which is added before the translation.
    """
    prefixes = _prefix_map(config, model_type)
    hf_heads = tuple(hf for our, hf in prefixes.items() if not our.startswith("encoder."))
    inverse = {hf: our for our, hf in prefixes.items()}
    has_prefix = any(name.startswith(f"{model_type}.") for name in tensors)
    is_bare = model_type != CUSTOM_MODEL_TYPE and not has_prefix
    renamed = {}
    for name, tensor in tensors.items():
        if _DERIVED_TENSORS.search(name):
            continue
        full_name = name
        if is_bare and not name.startswith(hf_heads):  # names of heads have no such prefix in any file
            full_name = f"{model_type}.{name}"
        renamed[_translate_name(full_name, inverse)] = tensor
    return renamed


def _prefix_map(config: ModelConfig, model_type: str) -> dict[str, str]:
    """Return Hugging Face's prefix for each of our prefixes, for all blocks of this shape; none for our own type."""
    table: dict[str, str] = {"albert": _ALBERT, "bert": _BERT, CUSTOM_MODEL_TYPE: {}}[model_type]
    inner = config.inner_group_num
    blocks = max(config.num_attention_sublayers, config.num_feed_forward_sublayers)
    prefixes = {}
    for our, hf in table.items():
        for k in range(blocks):  # prefixes without {k} give the same entry each time
            prefixes[our.format(k=k)] = hf.format(k=k, g=k // inner, i=k % inner)
    return prefixes


def _translate_name(name: str, prefixes: Mapping[str, str]) -> str:
    """Replace the prefix of a parameter's name; a name without a known prefix does not change."""
    if name in prefixes:  # a parameter that belongs to no layer: `masked.bias`
        return prefixes[name]
    prefix, _, leaf = name.rpartition(".")
    if prefix not in prefixes:
        return name
    return f"{prefixes[prefix]}.{_LEGACY_PARAMETER_NAMES.get(leaf, leaf)}"
