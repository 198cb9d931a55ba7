"""Whether a device computes what the CPU computes in fp32: loss and gradients of a step as training takes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from albert_cli.bench.harness import pretraining_loss, random_batch
from albert_cli.data.batches import PackedBatch
from albert_cli.model.config import ModelConfig
from albert_cli.model.heads import PretrainingModel
from albert_cli.training.device import autocast, prepare_model, resolve_auto
from albert_cli.training.settings import TrainSettings

# Relative differences that rounding explains: of the loss, and of all gradients by the norm of their difference. In
# bf16 a CPU's are 9e-5 and 1.7e-2 for ALBERT-base.
TOLERANCES: Final = {"fp32": (1e-4, 1e-3), "bf16": (1e-3, 5e-2)}
_LENGTHS: Final = (128, 16, 112, 32, 96, 48, 80, 64)


def measure(config: ModelConfig, train: TrainSettings, device: torch.device) -> dict[str, Any]:
    """Compare a step in the form that training has on the device with the CPU in fp32, on sequences of many lengths.

    The loss, how far it and the gradients are off (relative; the latter by norms), and whether both lie within
    `TOLERANCES`. Dropout is off.
    """
    config = replace(config, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    lengths = [min(length, config.max_position_embeddings) for length in _LENGTHS]
    drawn, plain = random_batch(lengths, config.vocab_size), TrainSettings(precision="fp32", compile="off")
    settled = resolve_auto(train, config, device, sequences=len(lengths), length=max(lengths))
    expected, before = compute_loss_and_gradients(config, drawn, plain, torch.device("cpu")), _graphs()
    found = compute_loss_and_gradients(config, drawn, settled, device)
    is_as_asked = settled.compile == "off" or _graphs() > before  # the compiler may have given up without a word
    loss_off, gradient_off = (
        float(torch.linalg.vector_norm(x - y) / torch.linalg.vector_norm(y))
        for x, y in zip(found, expected, strict=True)
    )
    most_loss, most_gradient = TOLERANCES[settled.precision]
    return {
        "form": settled.precision + (", compiled" if settled.compile == "on" else ""),
        "loss_fp32_cpu": round(float(expected[0]), 6),
        "loss": round(float(found[0]), 6),
        "loss_off": float(f"{loss_off:.3g}"),
        "gradient_off": float(f"{gradient_off:.3g}"),
        "is_right": loss_off <= most_loss and gradient_off <= most_gradient and is_as_asked,
    }


def _graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def compute_loss_and_gradients(
    config: ModelConfig, batch: PackedBatch, settings: TrainSettings, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(loss, all gradients in a row) of the pretraining model with the weights of seed 0, in fp32 on the CPU."""
    torch._dynamo.reset()  # a form compiled before must not stand for this one
    torch.manual_seed(0)
    model = PretrainingModel(config).train()
    prepare_model(model, settings, device)
    with autocast(settings.precision, device):
        loss = pretraining_loss(model, device, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = torch.cat([p.grad.flatten().float().cpu() for p in model.parameters() if p.grad is not None])
    return loss.detach().float().cpu(), gradients


def text(measured: Mapping[str, Any]) -> str:
    """The result of `measure` as a sentence."""
    right = "within rounding" if measured["is_right"] else "NOT what rounding explains"
    return (
        f"Against the CPU in fp32, {measured['form']}: loss {measured['loss']:.5f}, off by {measured['loss_off']:.1e}, "
        f"gradients off by {measured['gradient_off']:.1e}: {right}."
    )
