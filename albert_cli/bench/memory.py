"""Measure the memory of a training step on the device, with and without dropout, and estimate it by `counting`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from albert_cli import console
from albert_cli.bench.inputs import pretraining_loss
from albert_cli.counting import activations, costs
from albert_cli.data.batches import PackedBatch
from albert_cli.formatting import first_line
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.training.device import autocast
from albert_cli.training.settings import TrainSettings

DROPOUT = 0.1  # the rate of the paper's models that have dropout (§4.8)
_HEADERS = ("memory of the micro-batch, MB", "activations", "estimated", "state, estimated", "device's peak")


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a micro-batch at one dropout rate; the measured bytes are None if the measurement failed."""

    activations_saved: int | None  # by autograd for the backward pass, measured
    activations_estimated: int
    state_estimated: int  # weights, gradients, moments and the copy in bf16
    peak: int | None  # measured by the GPU's allocator, with weights and gradients; None on a CPU
    failed: str = ""  # the reason why the measurement failed


def measure_memory(
    config: ModelConfig, batch: PackedBatch, train: TrainSettings, device: torch.device
) -> dict[str, MemoryUse]:
    """Return the memory of this micro-batch without dropout and with a dropout of 0.1, by the name of the rate."""
    setup = costs.ComputeSetup.from_recipe(device.type, train.precision, "off")  # nothing is compiled below
    by_rate = {}
    for rate in (0.0, DROPOUT):
        shape = config.with_dropout(rate)
        saved = None
        peak = None
        failed = ""
        try:
            saved, peak = measure_saved_bytes(shape, batch, train, device)
        except RuntimeError as error:  # such as out of memory; the timings that are already measured must not be lost
            failed = first_line(error)
        estimated = sum(
            activations.activation_bytes(shape, int(length), setup, checkpointed=train.checkpoint_activations)
            for length in np.diff(batch.offsets)
        )
        state = costs.state_bytes(shape, setup).total
        by_rate[f"dropout {rate:g}"] = MemoryUse(saved, estimated, state, peak, failed)
    return by_rate


def measure_saved_bytes(
    config: ModelConfig, batch: PackedBatch, train: TrainSettings, device: torch.device
) -> tuple[int, int | None]:
    """Run one forward and backward pass; return the bytes that autograd saves, and the peak of the GPU's memory.

    The peak includes the weights, the saved bytes do not. The peak is None on a CPU.
    """
    with device:  # create the weights on the device, because initializing them on the host would be slow
        model = PretrainingModel(config).train()
    model.encoder.checkpointing = train.checkpoint_activations
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}  # bytes by address, so that a storage that is saved twice counts once

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        bytes_before = torch.cuda.memory_allocated(device)  # This includes the weights.
    hooks = torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor)
    with hooks, autocast(train.precision, device):
        loss = pretraining_loss(model, device, batch)
    torch.autograd.backward(loss)
    if device.type != "cuda":
        return sum(saved.values()), None
    # Subtract what else is on the device.
    weight_bytes = sum(p.untyped_storage().nbytes() for p in model.parameters())
    return sum(saved.values()), torch.cuda.max_memory_allocated(device) - bytes_before + weight_bytes


def format_memory(measured: Mapping[str, MemoryUse]) -> str:
    """Return the result of `measure_memory` as a table."""
    rows = []
    for name, use in measured.items():
        counts = (use.activations_saved, use.activations_estimated, use.state_estimated, use.peak)
        cells = ["–" if count is None else f"{count / 1e6:,.1f}" for count in counts]
        rows.append((f"{name}: {use.failed}" if use.failed else name, *cells))
    return console.format_table(_HEADERS, rows)
