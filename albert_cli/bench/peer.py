"""Convert albert's models and batches for `transformers`, the library with which benchmarks compare albert.

`transformers` is optional, and no other module of `albert_cli` imports it.

Shapes: T tokens of a batch, N sequences, S tokens of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from albert_cli.data.batches import PackedBatch
from albert_cli.errors import ConfigError
from albert_cli.model import hf_names
from albert_cli.model.heads import PretrainingModel, SequenceClassifier, TokenClassifier
from albert_cli.model.hf_config import CLASS_PREFIXES, config_to_json, model_type
from albert_cli.tasks.token_features import IGNORED

HfForward = Callable[..., Any]  # a model of `transformers`, or its compiled form

_ALONE: Final = "leave out --against (in `bench step`: use --alone)"


def make_transformers_model(model: nn.Module) -> nn.Module:
    """Return the model of `transformers` with the weights of `model`, in training mode, on the same device.

    Raises `ConfigError` if `transformers` is not installed or has no such architecture.
    """
    try:
        import transformers
    except ImportError:
        message = "transformers is not installed, so there is nothing to compare with"
        raise ConfigError(message, f"pip install transformers, or {_ALONE}") from None
    transformers.logging.set_verbosity_error()
    assert isinstance(model, PretrainingModel | SequenceClassifier | TokenClassifier)
    config = model.config
    hf_type = model_type(config)
    if hf_type not in ("albert", "bert"):
        message = "transformers cannot express this shape, so there is nothing to compare with"
        raise ConfigError(message, f"choose another shape, or {_ALONE}")
    architecture = "ForPreTraining"
    labels: tuple[str, ...] = ()
    if not isinstance(model, PretrainingModel):
        architecture = "ForTokenClassification" if isinstance(model, TokenClassifier) else "ForSequenceClassification"
        labels = tuple(f"LABEL_{i}" for i in range(model.classifier.out_features))
    values = config_to_json(config, architecture, labels)
    values.pop("architectures")
    prefix = CLASS_PREFIXES[hf_type]
    hf_config = getattr(transformers, f"{prefix}Config")(**values)
    hf_model: nn.Module = getattr(transformers, prefix + architecture)(hf_config)
    weights = hf_names.to_hf_names(model.state_dict(), config, hf_type)
    missing, unexpected = hf_model.load_state_dict(weights, strict=False)
    # In `transformers`, the decoder of the MLM head shares its matrix with the word embeddings, and its bias with the
    # head. Our weights have each tensor only once, so the decoder's names are missing.
    assert not unexpected and all("decoder" in name for name in missing), (missing, unexpected)
    return hf_model.to(next(model.parameters()).device).train()


def compute_loss(hf_model: HfForward, inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the loss of inputs that contain labels."""
    loss: Tensor = hf_model(**inputs).loss
    return loss


def pad_batch(batch: PackedBatch, device: torch.device, width: int = 0) -> dict[str, Tensor]:
    """Return the inputs of `transformers` for a batch, by name: int64 [N, S], padded on the right.

    width: S; 0 for the length of the longest sequence.
    """
    values = {"attention_mask": np.ones_like(batch.ids), "input_ids": batch.ids, "token_type_ids": batch.segment_ids}
    return {name: pad_tokens(batch, values_T, device, width) for name, values_T in values.items()}


def pad_tokens(
    batch: PackedBatch, values_T: NDArray[np.integer[Any]], device: torch.device, width: int = 0, *, filler: int = 0
) -> Tensor:
    """Pad the values of a batch's tokens, `values_T` [T], to int64 [N, S] on the device.

    filler: the value of padding; width: as in `pad_batch`.
    """
    lengths = np.diff(batch.offsets)
    is_token = np.arange(width or int(lengths.max())) < lengths[:, None]
    padded = np.full(is_token.shape, filler, np.int64)
    padded[is_token] = values_T
    return torch.from_numpy(padded).to(device)


def pretraining_inputs(model: PretrainingModel, batch: PackedBatch, device: torch.device) -> dict[str, Tensor]:
    """Return the padded batch with labels for both heads, `IGNORED` where nothing is predicted."""
    labels_T = np.full(len(batch.ids), IGNORED, np.int64)
    labels_T[batch.masked_index] = batch.masked_labels
    order_labels = np.where(batch.order_labels < 0, IGNORED, batch.order_labels).astype(np.int64)
    name = "sentence_order_label" if model_type(model.config) == "albert" else "next_sentence_label"
    return {
        **pad_batch(batch, device),
        "labels": pad_tokens(batch, labels_T, device, filler=IGNORED),
        name: torch.from_numpy(order_labels).to(device),
    }
