"""Translate a shape (`ModelConfig`) into the content of Hugging Face's `config.json`, with the right `model_type`.

`ModelConfig.from_hf` is the inverse.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from albert_cli.model.config import CUSTOM_MODEL_TYPE, ModelConfig

# Heads that Hugging Face does not have. If a checkpoint with such a head had a type of Hugging Face, its classes would
# load the encoder and silently initialize a new head.
CUSTOM_HEADS: Final = ("ForBeamQuestionAnswering",)
CLASS_PREFIXES: Final = {"albert": "Albert", "bert": "Bert", CUSTOM_MODEL_TYPE: "AlbertCli"}
MULTI_LABEL: Final = "multi_label_classification"  # Hugging Face's problem type


def model_type(config: ModelConfig, architecture: str = "") -> str:
    """Return the `model_type` for a shape: `albert` or `bert` if Hugging Face can express it, otherwise our own type.

    `architecture` is the head's class without its prefix. A head unknown to Hugging Face gets our own type, so that no
    other program loads the encoder without the head.
    """
    has_three_way_head = architecture == "ForPreTraining" and config.order_labels != 2
    has_custom_head = architecture in CUSTOM_HEADS or has_three_way_head
    if has_custom_head or config.group_sizes or config.is_sparse:
        return CUSTOM_MODEL_TYPE
    if config.has_projection and config.sharing in ("all", "none"):
        return "albert"
    if not config.has_projection and config.sharing == "none":
        return "bert"
    return CUSTOM_MODEL_TYPE


def config_to_json(
    config: ModelConfig, architecture: str, labels: tuple[str, ...] = (), *, multi_label: bool = False
) -> dict[str, object]:
    """Return the content of `config.json` with Hugging Face's keys.

    `labels` name a classifier's outputs. With `multi_label`, a text may have any number of the labels; otherwise a
    classifier with one label is a regression.
    """
    hf_type = model_type(config, architecture)
    # Keys that the type implies or that have no effect on this shape are left out.
    omitted = set()
    if config.attention == "full":
        omitted |= {"attention", "attention_global"}
    if config.attention != "window":
        omitted.add("attention_window")
    if config.attention != "block":
        omitted.add("attention_block")
    if hf_type != CUSTOM_MODEL_TYPE:
        omitted |= {"sharing", "always_project", "group_sizes", "order_labels"}
    if hf_type == "bert":
        omitted |= {"embedding_size", "num_hidden_groups", "inner_group_num", "classifier_dropout_prob"}
    values = {key: value for key, value in asdict(config).items() if key not in omitted}
    values["initializer_range"] = config.initial_std
    if hf_type == "bert":
        values["classifier_dropout"] = config.classifier_dropout_prob
    elif hf_type == "albert" and config.sharing == "none":
        values["num_hidden_groups"] = config.num_hidden_layers  # Hugging Face's way to share nothing
    values["model_type"] = hf_type
    values["architectures"] = [CLASS_PREFIXES[hf_type] + architecture]
    values["tie_word_embeddings"] = True
    values["pad_token_id"] = 0
    values["dtype"] = "float32"
    if labels:
        values["id2label"] = {str(number): label for number, label in enumerate(labels)}
        values["label2id"] = {label: number for number, label in enumerate(labels)}
        values["problem_type"] = "single_label_classification"
        if multi_label:
            values["problem_type"] = MULTI_LABEL
        elif len(labels) == 1:
            values["problem_type"] = "regression"
    return values
