"""What a step needs of memory, with and without dropout: estimated by `costs.py`, and measured where it can be."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from albert_cli import console
from albert_cli.bench.harness import make_training_step, pretraining_loss, random_batch
from albert_cli.counting import costs
from albert_cli.counting.paper import MEMORY, PRECISIONS
from albert_cli.data.batches import PackedBatch
from albert_cli.model.config import PRESETS, ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.training.device import autocast
from albert_cli.training.optimizers import make_optimizer
from albert_cli.training.settings import OptimizerSettings, TrainSettings

_TRIED = ("bert-base", "bert-large", "albert-base", "albert-large")
DROPOUT = 0.1  # the rate of the models that have any (§4.8)
_HEADERS = ("memory of the micro-batch, MB", "activations", "estimated", "state, estimated", "device's peak")


def measure(config: ModelConfig, batch: PackedBatch, train: TrainSettings, device: torch.device) -> dict[str, Any]:
    """Bytes for this micro-batch at a dropout of 0 and of 0.1; where that cannot be measured, why (`failed`).

    activations_estimated: by arithmetic; activations_kept: what autograd really holds for the backward pass;
    peak: the device's own measure of forward and backward pass, weights and gradients included, where it has one;
    state_estimated: weights, gradients, moments and the copy in bf16.
    """
    setup = costs.ComputeSetup.of(device.type, train.precision, "off")  # as it is measured below
    found = {}
    for rate in (0.0, DROPOUT):
        shape = replace(config, hidden_dropout_prob=rate, attention_probs_dropout_prob=rate)
        kept, peak, failed = None, None, ""
        try:
            kept, peak = measure_saved_bytes(shape, batch, train, device)
        except RuntimeError as error:  # out of memory among others: the times that were measured before are kept
            failed = str(error).strip().partition("\n")[0]
        found[f"dropout {rate:g}"] = {
            "activations_kept": kept,
            "activations_estimated": sum(
                costs.activation_bytes(shape, int(n), setup, checkpointed=train.checkpoint_activations)
                for n in np.diff(batch.offsets)
            ),
            "state_estimated": costs.state_bytes(shape, setup).total,
            "peak": peak,
            **({"failed": failed} if failed else {}),
        }
    return found


def measure_saved_bytes(
    config: ModelConfig, batch: PackedBatch, train: TrainSettings, device: torch.device
) -> tuple[int, int | None]:
    """Bytes that autograd keeps for the backward pass, weights apart; and the peak of a GPU, weights included."""
    with device:  # whose own random numbers take no time
        model = PretrainingModel(config).train()
    model.encoder.checkpointing = train.checkpoint_activations
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast(train.precision, device):
        loss = pretraining_loss(model, device, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    if device.type != "cuda":
        return sum(kept.values()), None
    own = sum(p.untyped_storage().nbytes() for p in model.parameters())
    return sum(kept.values()), torch.cuda.max_memory_allocated(device) - before + own


# ---------------------------------------------------------------- what fits, by trying


def find_largest_batches(device: torch.device) -> dict[str, Any]:
    """The largest batch of a whole step with LAMB that 12 GB hold, by model, precision and length.

    The process may take so much of the GPU and no more, half a gigabyte of it for the device's own context.
    """
    found: dict[str, Any] = {}
    if device.type != "cuda":
        return found
    torch.cuda.set_per_process_memory_fraction((MEMORY - 2**29) / torch.cuda.mem_get_info(device)[1], device)
    try:
        for name, precision, length in itertools.product(_TRIED, PRECISIONS, costs.LENGTHS):
            guess = costs.largest_batch(
                PRESETS[name], length, MEMORY, costs.ComputeSetup("cuda", precision, compiled=False)
            )
            fits = partial(_try_batch, PRESETS[name], length, precision, device)
            row = found.setdefault(f"{name}, {precision}", {"measured": [], "by arithmetic": []})
            row["measured"].append(find_largest(fits, guess))
            row["by arithmetic"].append(guess)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    return found


def find_largest(fits: Callable[[int], bool], guess: int) -> int:
    """The greatest number that fits, to a sixteenth, looked for around a guess; 0 where not even 1 does."""
    least, most = 0, max(1, guess)
    while fits(most):
        least, most = most, 2 * most
    while most - least > max(1, least // 16):
        middle = (least + most) // 2
        least, most = (middle, most) if fits(middle) else (least, middle)
    return least


def _try_batch(config: ModelConfig, length: int, precision: str, device: torch.device, sequences: int) -> bool:
    try:
        with device:
            model = PretrainingModel(config).train()
        batch = random_batch([length] * sequences, config.vocab_size)
        optimizer = make_optimizer(model, OptimizerSettings())
        loss = partial(pretraining_loss, model, device)
        step = make_training_step(model, loss, [batch], optimizer, 1.0, precision)
        step(), step()  # the second has all moments
    except torch.OutOfMemoryError:
        return False
    finally:
        model = step = optimizer = loss = None  # type: ignore[assignment]
        torch.cuda.empty_cache()
    return True


def text(measured: Mapping[str, Mapping[str, Any]]) -> str:
    """The result of `measure` as a table."""
    keys = ("activations_kept", "activations_estimated", "state_estimated", "peak")
    rows = []
    for name, found in measured.items():
        cells = ("–" if found[key] is None else f"{found[key] / 1e6:,.1f}" for key in keys)
        rows.append((f"{name}: {found['failed']}" if found.get("failed") else name, *cells))
    return console.format_table(_HEADERS, rows)
