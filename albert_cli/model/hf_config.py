"""Write a shape as Hugging Face's `config.json`, under the model type that expresses it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from albert_cli.model.config import CUSTOM_MODEL_TYPE, ModelConfig

# Heads that no class of Hugging Face has: its classes would load the encoder and initialize the head anew.
CUSTOM_HEADS: Final = ("ForBeamQuestionAnswering",)
CLASS_PREFIXES: Final = {"albert": "Albert", "bert": "Bert", CUSTOM_MODEL_TYPE: "AlbertCli"}
MULTI_LABEL: Final = "multi_label_classification"  # Hugging Face's problem type


def model_type(config: ModelConfig, architecture: str = "") -> str:
    """Return the Hugging Face type that expresses the shape: `albert`, `bert`, or our own if neither does.

    Heads (`architecture`) unknown to Hugging Face also get our own type, so that no program loads such a file
    partially.
    """
    has_custom_head = architecture in CUSTOM_HEADS or (architecture == "ForPreTraining" and config.order_labels != 2)
    if has_custom_head or config.group_sizes or config.is_sparse:
        return CUSTOM_MODEL_TYPE
    if config.has_projection and config.sharing in ("all", "none"):
        return "albert"  # nothing shared is as many groups as layers
    if not config.has_projection and config.sharing == "none":
        return "bert"
    return CUSTOM_MODEL_TYPE


def config_to_json(
    config: ModelConfig, architecture: str, labels: tuple[str, ...] = (), *, multi_label: bool = False
) -> dict[str, object]:
    """Return `config.json` with Hugging Face's keys.

    `labels` name a classifier's outputs; a single one makes it a regression, unless a text may have several
    (`multi_label`).
    """
    kind = model_type(config, architecture)
    omitted = {"attention_window", "attention_block"} - {f"attention_{config.attention}"}
    if config.attention == "full":
        omitted |= {"attention", "attention_global"}
    if kind != CUSTOM_MODEL_TYPE:
        omitted |= {"sharing", "always_project", "group_sizes", "order_labels"}
    if kind == "bert":
        omitted |= {"embedding_size", "num_hidden_groups", "inner_group_num", "classifier_dropout_prob"}
    values = {key: value for key, value in asdict(config).items() if key not in omitted}
    values["initializer_range"] = config.initial_std
    if kind == "bert":
        values["classifier_dropout"] = config.classifier_dropout_prob
    elif kind == "albert" and config.sharing == "none":
        values["num_hidden_groups"] = config.num_hidden_layers
    values["model_type"] = kind
    values["architectures"] = [CLASS_PREFIXES[kind] + architecture]
    values["tie_word_embeddings"] = True
    values["pad_token_id"] = 0
    values["dtype"] = "float32"
    if labels:
        values["id2label"] = {str(number): label for number, label in enumerate(labels)}
        values["label2id"] = {label: number for number, label in enumerate(labels)}
        values["problem_type"] = "regression" if len(labels) == 1 else "single_label_classification"
        if multi_label:
            values["problem_type"] = MULTI_LABEL
    return values
