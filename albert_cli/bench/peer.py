"""The same model as `transformers` builds it; this module alone imports that package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from albert_cli.bench.harness import random_batch
from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError
from albert_cli.model import hf_names, hub
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel, SequenceClassifier

_BLOCK: Final = 64  # tokens of Big Bird's; it has three random blocks beside


def make_transformers_model(model: PretrainingModel | SequenceClassifier) -> torch.nn.Module:
    """The Hugging Face model with the weights of `model`, in training mode, on its device.

    Raises `ConfigError` where `transformers` is missing or has no such architecture.
    """
    try:
        import transformers
    except ImportError:
        raise ConfigError(
            "transformers is not installed, so there is nothing to compare with",
            "pip install transformers, or --alone",
        ) from None
    transformers.logging.set_verbosity_error()
    config = model.config
    kind = hub.model_type(config)
    if kind not in ("albert", "bert"):
        raise ConfigError(
            "transformers cannot express this shape, so there is nothing to compare with",
            "choose another shape, or --alone",
        )
    labels = getattr(model, "num_labels", 0)
    architecture = "ForSequenceClassification" if labels else "ForPreTraining"
    values: dict[str, Any] = hub.config_to_json(config, architecture, tuple(f"LABEL_{i}" for i in range(labels)))
    prefix = kind.capitalize()
    made = getattr(transformers, f"{prefix}Config")(**{k: v for k, v in values.items() if k != "architectures"})
    other: torch.nn.Module = getattr(transformers, prefix + architecture)(made)
    missing, unexpected = other.load_state_dict(hf_names.to_hf_names(model.state_dict(), config, kind), strict=False)
    assert not unexpected and all("decoder" in name for name in missing), (missing, unexpected)
    return other.to(next(model.parameters()).device).train()


def compute_loss(called: Any, given: Mapping[str, Tensor]) -> Tensor:
    """What the twin, or its compiled form, makes of inputs with labels."""
    loss: Tensor = called(**given).loss
    return loss


def pad_batch(batch: PackedBatch, device: torch.device, width: int = 0) -> dict[str, Tensor]:
    """The batch as `transformers` takes it: [N, S] int64, padded on the right to `width` (0: to the longest)."""
    lengths = np.diff(batch.offsets)
    there = np.arange(width or int(lengths.max())) < lengths[:, None]
    made = {"attention_mask": there.astype(np.int64)}
    for name, values in (("input_ids", batch.ids), ("token_type_ids", batch.segment_ids)):
        made[name] = np.zeros(there.shape, np.int64)
        made[name][there] = values
    return {name: torch.from_numpy(array).to(device) for name, array in made.items()}


def pretraining_inputs(model: PretrainingModel, batch: PackedBatch, device: torch.device) -> dict[str, Tensor]:
    """The padded batch with labels for both heads, -100 where there is nothing to predict."""
    given = pad_batch(batch, device)
    lengths = np.diff(batch.offsets)
    row = np.repeat(np.arange(len(lengths)), lengths)[batch.masked_index]
    labels = np.full(tuple(given["input_ids"].shape), -100, np.int64)
    labels[row, batch.position_ids[batch.masked_index]] = batch.masked_labels
    sop = np.where(batch.order_labels < 0, -100, batch.order_labels).astype(np.int64)
    name = "sentence_order_label" if hub.model_type(model.config) == "albert" else "next_sentence_label"
    return given | {"labels": torch.from_numpy(labels).to(device), name: torch.from_numpy(sop).to(device)}


def make_sparse_model(config: ModelConfig, form: str, length: int, device: torch.device) -> Callable[[int], Tensor]:
    """The last states of Longformer with the same window and a global [CLS], or of Big Bird with its own blocks.

    A function of the number of tokens of one sequence, [1, T, H].
    """
    import transformers

    transformers.logging.set_verbosity_error()
    shape = {
        "hidden_size": config.hidden_size, "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads, "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    }  # fmt: skip
    made: Any
    if form == "longformer":
        window = 2 * config.attention_window
        own = {"attention_window": window, "max_position_embeddings": length + window + 2}
        made = transformers.LongformerModel(transformers.LongformerConfig(**shape, **own), add_pooling_layer=False)
    else:
        blocks = {"attention_type": "block_sparse", "block_size": _BLOCK, "max_position_embeddings": length + _BLOCK}
        made = transformers.BigBirdModel(transformers.BigBirdConfig(**shape, **blocks), add_pooling_layer=False)
    model = made.to(device).train()

    def states(tokens: int) -> Tensor:
        ids = torch.from_numpy(random_batch([tokens], config.vocab_size).ids.astype(np.int64))[None].to(device)
        more = {"global_attention_mask": (torch.arange(tokens) == 0).long()[None].to(device)}
        found: Tensor = model(ids, **(more if form == "longformer" else {})).last_hidden_state
        return found

    return states
