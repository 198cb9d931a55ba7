"""What a step needs of memory, with and without dropout: estimated by `costs.py`, and measured where it can be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from albert_cli.data.batches import PackedBatch
from albert_cli.model import costs
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.model.packing import pack
from albert_cli.training.device import autocast
from albert_cli.training.settings import TrainSettings

DROPOUT = 0.1  # the rate of the models that have any (§4.8)


def measure(config: ModelConfig, batch: PackedBatch, train: TrainSettings, device: torch.device) -> dict[str, Any]:
    """Bytes for this micro-batch at a dropout of 0 and of 0.1.

    activations_estimated: by arithmetic; activations_kept: what autograd really holds for the backward pass;
    peak: the device's own measure of forward and backward pass, weights and gradients included, where it has one;
    state_estimated: weights, gradients, moments and the copy in bf16.
    """
    kind: Literal["cuda", "cpu"] = "cuda" if device.type == "cuda" else "cpu"
    setup = costs.Setup(kind, cast(Literal["bf16", "fp32"], train.precision))
    found = {}
    for rate in (0.0, DROPOUT):
        with_rate = replace(config, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
        estimated = sum(
            costs.activation_bytes(with_rate, int(n), setup, checkpointed=train.checkpoint_activations)
            for n in np.diff(batch.offsets)
        )
        kept, peak = _measured(with_rate, batch, train, device)
        found[f"dropout {rate:g}"] = {
            "activations_estimated": estimated,
            "activations_kept": kept,
            "peak": peak,
            "state_estimated": costs.state_bytes(with_rate, setup).total,
        }
    return found


def _measured(
    config: ModelConfig, batch: PackedBatch, train: TrainSettings, device: torch.device
) -> tuple[int, int | None]:
    model = PretrainingModel(config)
    model.encoder.checkpointing = train.checkpoint_activations
    model.to(device).train()
    is_cuda = device.type == "cuda"
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    def loss() -> Tensor:
        logits = model(pack(batch, device, batch.masked_index))
        labels = torch.from_numpy(batch.masked_labels.astype(np.int64)).to(device)
        orders: Tensor = logits.order.float().logsumexp(-1).mean()
        return F.cross_entropy(logits.masked.float(), labels) + orders

    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast(train.precision, device):
        value = loss()
    value.backward()  # type: ignore[no-untyped-call]
    if not is_cuda:
        return sum(held.values()), None
    own = sum(p.untyped_storage().nbytes() for p in model.parameters())
    return sum(held.values()), torch.cuda.max_memory_allocated(device) - before + own
